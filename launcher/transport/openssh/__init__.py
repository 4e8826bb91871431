"""What OpenSSH means by its files and options: configuration, known hosts, the way to a host."""
