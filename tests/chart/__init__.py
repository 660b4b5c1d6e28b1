"""The model of the Helm chart's values, and what is made from it: `python -m tests.chart`."""
