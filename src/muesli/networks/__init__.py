"""Networks behind one record of pure functions. Flax NNX lives in this package and nowhere else."""

from muesli.networks.network import NETWORKS, Network, make_network

__all__ = ["NETWORKS", "Network", "make_network"]
