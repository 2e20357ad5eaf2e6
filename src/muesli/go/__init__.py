"""Go beyond training: rules for a referee, GTP in both directions, matches, diagrams."""
