//! The `pagehaul` command.

fn main() {}
