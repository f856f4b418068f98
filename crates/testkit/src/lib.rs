//! Test tools: throwaway PostgreSQL clusters, faults, oracles.
