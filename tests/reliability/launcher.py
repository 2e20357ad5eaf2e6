"""Starts real processes quickly: JAX and muesli are imported once, and each command is a fork.

A command is a line of JSON on standard input; the answer is a line on standard output.
"""

import json
import os
import sys


def run(argv, output, log_compiles):
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 70
    try:
        import jax

        from muesli.cli.main import main

        jax.config.update("jax_log_compiles", log_compiles)
        code = main(argv)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve():
    import warnings

    import tyro  # noqa: F401
    from jax._src import xla_bridge

    import muesli.cli.train
    import muesli.presets
    import muesli.runners.train  # noqa: F401

    # With a backend there would be threads, which a fork does not carry over.
    assert not xla_bridge._backends
    warnings.simplefilter("ignore")
    print("ready", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        if "wait" in told:
            _, status = os.waitpid(told["wait"], os.WNOHANG if told.get("poll") else 0)
            answer = None if _ == 0 else os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                run(told["argv"], told["output"], told["log_compiles"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
