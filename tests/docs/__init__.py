"""The documentation as tests see it: what is made in it, and who runs its commands."""
