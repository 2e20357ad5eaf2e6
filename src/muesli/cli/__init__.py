"""The ``muesli`` command. Nothing here imports JAX before it is known that it is needed."""
