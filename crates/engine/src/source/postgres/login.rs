//! The start of a session: the start-up message and whatever proof of identity the server wants.

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::frontend;

use super::client::{Connection, Message, SessionKind};
use super::conninfo::ConnectSettings;
use super::server_error::ServerError;
use super::tls_settings::ChannelBindingMode;
use crate::error::{Error, ErrorKind, Result};

/// SQLSTATE of a user whom no rule lets in by this way.
pub(super) const INVALID_AUTHORIZATION: &str = "28000";

/// Speaks the start-up phase up to the first ReadyForQuery.
///
/// Answers trust, peer, cleartext, MD5 and SCRAM-SHA-256; the rest is a `Source` error that names the method.
pub(super) fn log_in(connection: &mut Connection, settings: &ConnectSettings, kind: SessionKind) -> Result<()> {
    let mut message = BytesMut::new();
    let mut parameters =
        vec![("user", settings.user.as_str()), ("application_name", "pagehaul"), ("client_encoding", "UTF8")];
    match kind {
        SessionKind::Sql => parameters.push(("database", settings.database.as_str())),
        SessionKind::Replication => parameters.push(("replication", "true")),
    }
    frontend::startup_message(parameters, &mut message)
        .map_err(|_| refused(settings, "a user or database name has a NUL"))?;
    connection.send(&message)?;
    let mut proof = Proof::default();
    loop {
        let Message { tag, body } = connection.read_message()?;
        match tag {
            b'R' => authenticate(connection, settings, &body, &mut proof)?,
            b'E' => {
                let error = ServerError::parse(&body);
                connection.note_refusal(&error.sqlstate);
                return Err(refusal_with_hint(settings, &error));
            }
            b'Z' => return Ok(()),
            // BackendKeyData, and an offer of an older minor protocol version.
            b'K' | b'v' => {}
            _ => return Err(connection.unexpected("something else than a log-in dialogue; is this PostgreSQL?")),
        }
    }
}

/// How far the proof of a password is.
#[derive(Default)]
struct Proof {
    scram: Option<ScramSha256>,
    /// It is bound to the server's certificate.
    is_bound: bool,
}

/// Answers one authentication request (protocol-message-formats, "Authentication...").
fn authenticate(connection: &mut Connection, settings: &ConnectSettings, body: &[u8], proof: &mut Proof) -> Result<()> {
    let Some((kind, data)) = body.split_first_chunk::<4>() else {
        return Err(connection.unexpected("a malformed authentication request"));
    };
    let mut answer = BytesMut::new();
    let built = match u32::from_be_bytes(*kind) {
        0 if settings.tls.channel_binding == ChannelBindingMode::Require && !proof.is_bound => {
            return Err(refused(
                settings,
                "channel_binding=require, and the server did not ask for a proof that is bound",
            ));
        }
        0 => return Ok(()),
        3 => frontend::password_message(password(settings)?.as_bytes(), &mut answer),
        5 => {
            let Ok(salt) = <[u8; 4]>::try_from(data) else {
                return Err(connection.unexpected("a malformed MD5 request"));
            };
            let hash = md5_hash(settings.user.as_bytes(), password(settings)?.as_bytes(), salt);
            frontend::password_message(hash.as_bytes(), &mut answer)
        }
        10 => {
            let (mechanism, binding) = mechanism(connection, settings, data)?;
            proof.is_bound = mechanism == SCRAM_SHA_256_PLUS;
            let exchange = ScramSha256::new(password(settings)?.as_bytes(), binding);
            let built = frontend::sasl_initial_response(mechanism, exchange.message(), &mut answer);
            proof.scram = Some(exchange);
            built
        }
        11 => {
            let exchange = proof.scram.as_mut().ok_or_else(|| refused(settings, "SCRAM goes on before it began"))?;
            exchange.update(data).map_err(|cause| refused(settings, &format!("SCRAM: {cause}")))?;
            frontend::sasl_response(exchange.message(), &mut answer)
        }
        12 => {
            // The server proves here that it knows the password too.
            let exchange = proof.scram.as_mut().ok_or_else(|| refused(settings, "SCRAM ends before it began"))?;
            return exchange.finish(data).map_err(|cause| refused(settings, &format!("SCRAM: {cause}")));
        }
        other => {
            let name = match other {
                2 | 7 | 8 => "Kerberos or GSSAPI",
                9 => "SSPI",
                _ => "an unknown method",
            };
            return Err(refused(settings, &format!("the server wants to authenticate by {name}"))
                .hint("give this user a peer, scram-sha-256 or md5 line in pg_hba.conf"));
        }
    };
    built.map_err(|_| refused(settings, "the password has a NUL"))?;
    connection.send(&answer)
}

/// The best of the mechanisms that the server offers, and what to say of channel binding with it.
fn mechanism(
    connection: &Connection,
    settings: &ConnectSettings,
    offered: &[u8],
) -> Result<(&'static str, ChannelBinding)> {
    let offers = |name: &str| offered.split(|byte| *byte == 0).any(|mechanism| mechanism == name.as_bytes());
    let mode = settings.tls.channel_binding;
    let hash = connection.end_point_hash().filter(|_| mode != ChannelBindingMode::Disable);
    match hash {
        Some(hash) if offers(SCRAM_SHA_256_PLUS) => {
            Ok((SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash)))
        }
        _ if mode == ChannelBindingMode::Require => {
            Err(refused(settings, "channel_binding=require, and it is not to be had")
                .hint("it needs TLS, scram-sha-256, and a certificate signed with RSA or ECDSA"))
        }
        _ if !offers(SCRAM_SHA_256) => Err(refused(settings, "the server offers no SASL mechanism that is known here")),
        // We could: a server that could, too, sees that somebody took its offer away.
        Some(_) => Ok((SCRAM_SHA_256, ChannelBinding::unrequested())),
        None => Ok((SCRAM_SHA_256, ChannelBinding::unsupported())),
    }
}

fn password(settings: &ConnectSettings) -> Result<&str> {
    settings.password.as_ref().map(|secret| secret.reveal()).ok_or_else(|| {
        refused(settings, "the server wants a password and none is known")
            .hint("put it into ~/.pgpass (mode 0600) or into PGPASSWORD")
    })
}

fn refused(settings: &ConnectSettings, cause: &str) -> Error {
    Error::new(ErrorKind::Source, format!("log in to the {settings}"), cause)
}

/// The next step by SQLSTATE.
fn refusal_with_hint(settings: &ConnectSettings, error: &ServerError) -> Error {
    let cause = error.to_string();
    let hint = match error.sqlstate.as_str() {
        "28000" if error.message.to_ascii_lowercase().contains("peer") => {
            "peer authentication wants the OS user of the same name: run as the OS user postgres, \
             or give user= and a password that pg_hba.conf accepts"
        }
        "28000" => "check the user name, and pg_hba.conf for a line that lets this user in",
        "28P01" => "check the password (~/.pgpass, PGPASSWORD or password=)",
        "3D000" => "name an existing database with dbname=",
        "53300" => "the server has no free connection; raise max_connections or wait",
        "57P03" => "the server is starting up or shutting down; try again shortly",
        _ => return refused(settings, &cause),
    };
    refused(settings, &cause).hint(hint)
}
