"""One block a file, on any POSIX file system or a 3FS mount, also one that several stores share."""
