"""What `bench` measures, a file each (see the contract in `bench`)."""
