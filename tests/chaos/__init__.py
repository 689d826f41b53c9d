"""The chaos suite: random faults on a real cluster under load, judged by a checker that knows nothing of the code."""
