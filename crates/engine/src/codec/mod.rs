//! Codecs: pure bytes to bytes.
