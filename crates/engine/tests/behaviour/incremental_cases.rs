//! What may happen to files between two backups, case by case, and what may happen to the sets that one builds on.
