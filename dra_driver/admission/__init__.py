"""The webhook that tells authors of claims, templates and classes what is wrong with them."""
