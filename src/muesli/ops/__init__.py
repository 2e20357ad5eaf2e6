"""The paper's equations as small pure functions of one sequence ``[T]`` or one state.

No function here knows a batch axis, calls ``stop_gradient`` or holds state: ``agent.update`` maps
them over the batch and decides what is constant.
"""
