"""A GTP engine that misbehaves on demand: python fake_engine.py MODE."""

import os
import subprocess
import sys
import time

MODE = sys.argv[1] if len(sys.argv) > 1 else "pass"
moves = games = 0
for line in sys.stdin:
    command = line.split()[0] if line.split() else ""
    games += command == "clear_board"
    if command == "genmove":
        moves += 1
        if MODE == "crash" and moves == 2:
            print("out of cheese", file=sys.stderr)
            sys.exit(3)
        if MODE == "hang" or (MODE == "stall" and games == 3):
            subprocess.Popen(["sleep", "600"])  # a child that must be ended too
            time.sleep(600)
        if MODE == "nap":
            time.sleep(600)
        if MODE == "flood":
            while True:
                print("=" * 1000, flush=True)
        answer = {"illegal": "C3", "resign": "resign", "garble": "over there"}.get(MODE, "pass")
        more = "= A1\n\n" if MODE == "double" else "\n\r\n \n" if MODE == "airy" else ""
        print(f"= {answer}\n\n{more}", end="", flush=True)
    elif command == "play" and MODE == "deny":
        print("? illegal move\n", flush=True)
    elif MODE == "rude":
        print("hello\n", flush=True)
    elif command == "komi" and (MODE == "refuse" or (MODE == "tire" and games == 3)):
        print("? no\nnever\n", flush=True)
    elif command == "final_score":
        print("? no\n" if MODE == "mute" else f"= B+{os.getpid()}\n", flush=True)
    else:
        print("=\n", flush=True)
    if command == "quit":
        break
