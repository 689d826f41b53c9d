"""The attacks, one file per topic. Every function with the decorator `attack` is found by itself."""
