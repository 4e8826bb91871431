"""The recipe: what a user writes, checked, resolved and explained. No torch here."""
