"""How bytes reach an agent: one method, `Transport.connect`, and two implementations, local and ssh."""
