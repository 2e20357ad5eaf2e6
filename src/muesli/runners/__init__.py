"""Where an agent runs. The agent is the same everywhere; only the loops differ."""
