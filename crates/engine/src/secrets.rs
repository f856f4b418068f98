//! Secrets in the environment: what this program was given for itself is not for those that it starts.

use std::process::Command;

/// Holds the password of the login with which SQL Server is reached.
pub const MSSQL_PASSWORD_VARIABLE: &str = "PAGEHAUL_MSSQL_PASSWORD";

/// Variables that hold a secret themselves: those of S3, Azure Blob and Google Cloud Storage that reqsign reads (its crates
/// aws-v4, azure-storage and google), libpq's, and ours. Those that name a file with a secret are none.
pub const VARIABLES: &[&str] = &[
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AZBLOB_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_BEARER_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_CLIENT_CERTIFICATE_PASSWORD",
    "AZURE_MSI_SECRET",
    "GOOGLE_ACCESS_TOKEN",
    "GOOGLE_PRIVATE_KEY",
    "PGPASSWORD",
    MSSQL_PASSWORD_VARIABLE,
];

/// Those that hold one if the proxy wants a password.
const PROXIES: [&str; 6] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// Whether this process has one.
pub fn are_here() -> bool {
    held().next().is_some()
}

fn held() -> impl Iterator<Item = &'static str> {
    let has_password = |name: &&&str| std::env::var(name).is_ok_and(|address| address.contains('@'));
    let is_set = |name: &&&str| std::env::var_os(name).is_some_and(|secret| !secret.is_empty());
    VARIABLES.iter().filter(is_set).chain(PROXIES.iter().filter(has_password)).copied()
}

/// Leaves them out of what `command` inherits: of each program that neither is pagehaul nor is asked for a secret.
pub fn keep_from(command: &mut Command) -> &mut Command {
    held().fold(command, |command, name| command.env_remove(name))
}
