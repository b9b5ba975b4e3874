"""What is the same for every framework, under the names that Horovod has for it."""
