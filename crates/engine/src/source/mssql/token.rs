//! The tokens of a response, read as they come: what is not there whole is tried again when more has come.

use super::server_message::ServerMessage;
use super::value::{Column, Value, read_kind, read_value};
use super::wire::{Cursor, Read, Unread};

/// A result set has at most so many columns; the server's own limit is 4096.
const COLUMN_COUNT_MAX: usize = 4096;
/// No columns come with this number.
const NO_COLUMNS: u16 = 0xffff;
/// The server continues after this DONE.
const DONE_MORE: u16 = 0x0001;
/// The statement failed.
const DONE_ERROR: u16 = 0x0002;
/// The answer to an attention.
const DONE_ATTENTION: u16 = 0x0020;

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Columns(Vec<Column>),
    Row(Vec<Value>),
    Message(ServerMessage),
    /// The log-in succeeded, with this version of the server (major, minor, build).
    LoggedIn([u16; 3]),
    /// Packets have this size from now on.
    PacketSize(usize),
    /// The server wants us elsewhere.
    Routed(String),
    Done {
        has_more: bool,
        failed: bool,
        is_attention: bool,
    },
    /// Nothing for us.
    Other,
}

/// Reads the token at the front of `bytes`, whose rows have `columns`; gives it and how many bytes it has.
///
/// # Errors
/// `More` if it is not there whole, `Bad` for what the protocol or our bounds do not allow.
pub(super) fn read_token(bytes: &[u8], columns: &[Column]) -> Read<(Token, usize)> {
    let mut cursor = Cursor::new(bytes);
    let token = match cursor.u8()? {
        0x81 => read_columns(&mut cursor)?,
        0xd1 => Token::Row(columns.iter().map(|column| read_value(&mut cursor, column.kind)).collect::<Read<_>>()?),
        0xd2 => read_row_with_nulls(&mut cursor, columns)?,
        0xaa => read_message(&mut cursor, true)?,
        0xab => read_message(&mut cursor, false)?,
        0xad => read_login_ack(&mut cursor)?,
        0xe3 => read_change(&mut cursor)?,
        0xfd..=0xff => {
            let status = cursor.u16()?;
            cursor.take(10)?;
            Token::Done {
                has_more: status & DONE_MORE != 0,
                failed: status & DONE_ERROR != 0,
                is_attention: status & DONE_ATTENTION != 0,
            }
        }
        // Return status; order, column info, table names, SSPI; session state; features.
        0x79 => cursor.take(4).map(|_| Token::Other)?,
        0xa9 | 0xa5 | 0xa4 | 0xed => cursor.short_bytes().map(|_| Token::Other)?,
        0xe4 => {
            let size = cursor.u32()? as usize;
            cursor.take(size).map(|_| Token::Other)?
        }
        0xae => {
            while cursor.u8()? != 0xff {
                let size = cursor.u32()? as usize;
                cursor.take(size)?;
            }
            Token::Other
        }
        other => return Err(Unread::Bad(format!("a token 0x{other:02x}, which is not expected"))),
    };
    Ok((token, cursor.position()))
}

fn read_columns(cursor: &mut Cursor<'_>) -> Read<Token> {
    let count = cursor.u16()?;
    if count == NO_COLUMNS {
        return Ok(Token::Columns(Vec::new()));
    }
    if usize::from(count) > COLUMN_COUNT_MAX {
        return Err(Unread::Bad(format!("a result of {count} columns")));
    }
    let column = |cursor: &mut Cursor<'_>| {
        // User type and flags.
        cursor.take(6)?;
        let kind = read_kind(cursor)?;
        Ok(Column { name: cursor.byte_text()?, kind })
    };
    Ok(Token::Columns((0..count).map(|_| column(cursor)).collect::<Read<_>>()?))
}

fn read_row_with_nulls(cursor: &mut Cursor<'_>, columns: &[Column]) -> Read<Token> {
    let nulls = cursor.take(columns.len().div_ceil(8))?.to_vec();
    let is_null = |index: usize| nulls.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0);
    let value = |(index, column): (usize, &Column)| {
        if is_null(index) { Ok(Value::Null) } else { read_value(cursor, column.kind) }
    };
    Ok(Token::Row(columns.iter().enumerate().map(value).collect::<Read<_>>()?))
}

fn read_message(cursor: &mut Cursor<'_>, is_error: bool) -> Read<Token> {
    let content = cursor.short_bytes()?;
    let mut inner = Cursor::new(content);
    let mut read = || -> Read<ServerMessage> {
        let (number, state, class) = (inner.i32()?, inner.u8()?, inner.u8()?);
        let text = inner.short_text()?;
        let (_server, _procedure) = (inner.byte_text()?, inner.byte_text()?);
        // What came as an error is one, whatever its severity says.
        Ok(ServerMessage { number, state, class: class.max(if is_error { 11 } else { 0 }), text, line: inner.u32()? })
    };
    read().map(Token::Message).map_err(|_| Unread::Bad("a message that ends too early".to_owned()))
}

fn read_login_ack(cursor: &mut Cursor<'_>) -> Read<Token> {
    let mut inner = Cursor::new(cursor.short_bytes()?);
    let mut read = || -> Read<[u16; 3]> {
        // Interface and version of the protocol.
        inner.take(5)?;
        inner.byte_text()?;
        let version = inner.take(4)?;
        Ok([u16::from(version[0]), u16::from(version[1]), u16::from_be_bytes([version[2], version[3]])])
    };
    read().map(Token::LoggedIn).map_err(|_| Unread::Bad("a log-in that ends too early".to_owned()))
}

fn read_change(cursor: &mut Cursor<'_>) -> Read<Token> {
    const PACKET_SIZE: u8 = 4;
    const ROUTING: u8 = 20;
    let mut inner = Cursor::new(cursor.short_bytes()?);
    let mut read = || -> Read<Token> {
        match inner.u8()? {
            PACKET_SIZE => {
                let text = inner.byte_text()?;
                let size = text.parse().ok().filter(|size| super::wire::PACKET_SIZES.contains(size));
                size.map(Token::PacketSize).ok_or_else(|| Unread::Bad(format!("a packet size of {text:?}")))
            }
            ROUTING => {
                // Length, protocol, port, host.
                inner.take(3)?;
                let port = inner.u16()?;
                Ok(Token::Routed(format!("{}:{port}", inner.short_text()?)))
            }
            _ => Ok(Token::Other),
        }
    };
    read().map_err(|unread| match unread {
        Unread::More => Unread::Bad("a change of the session that ends too early".to_owned()),
        bad @ Unread::Bad(_) => bad,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::mssql::wire::utf16;

    /// An INFO (0xab) or ERROR (0xaa) token.
    fn message(kind: u8, number: i32, class: u8, text: &str) -> Vec<u8> {
        let mut content = number.to_le_bytes().to_vec();
        content.extend([1, class]);
        content.extend((text.encode_utf16().count() as u16).to_le_bytes());
        content.extend(utf16(text));
        content.extend([0, 0, 7, 0, 0, 0]);
        let mut bytes = vec![kind];
        bytes.extend((content.len() as u16).to_le_bytes());
        bytes.extend(content);
        bytes
    }

    #[test]
    fn messages_are_read_when_they_are_whole() {
        let bytes = message(0xab, 3211, 0, "10 percent processed.");
        for cut in 0..bytes.len() {
            assert_eq!(read_token(&bytes[..cut], &[]), Err(Unread::More), "{cut}");
        }
        let (token, size) = read_token(&bytes, &[]).unwrap();
        let Token::Message(found) = token else { panic!("{token:?}") };
        assert_eq!((found.number, found.line, size), (3211, 7, bytes.len()));
        assert!(!found.is_error());
        let (token, _) = read_token(&message(0xaa, 701, 0, "x"), &[]).unwrap();
        assert!(matches!(token, Token::Message(found) if found.is_error()));
    }

    #[test]
    fn rows_with_and_without_nulls() {
        let mut bytes = vec![0x81, 2, 0];
        bytes.extend([0; 6]);
        bytes.extend([0x26, 4, 1, b'a', 0]);
        bytes.extend([0; 6]);
        bytes.extend([0xe7, 40, 0, 0, 0, 0, 0, 0, 1, b'b', 0]);
        let (Token::Columns(columns), size) = read_token(&bytes, &[]).unwrap() else { panic!() };
        assert_eq!((columns.len(), columns[1].name.as_str(), size), (2, "b", bytes.len()));
        let row = [0xd1, 1, 5, 2, 0, b'x', 0];
        let (token, _) = read_token(&row, &columns).unwrap();
        assert_eq!(token, Token::Row(vec![Value::Int(5), Value::Text("x".into())]));
        let (token, size) = read_token(&[0xd2, 0b01, 2, 0, b'y', 0], &columns).unwrap();
        assert_eq!((token, size), (Token::Row(vec![Value::Null, Value::Text("y".into())]), 6));
    }

    #[test]
    fn what_is_hostile_is_refused_at_once() {
        let cases: [&[u8]; 6] = [
            &[0x81, 0xfe, 0xff],
            &[0xac, 1, 2, 3],
            &[0xab, 3, 0, 1, 2, 3],
            &[0xe3, 6, 0, 4, 2, b'9', 0, b'9', 0],
            &[0xad, 1, 0, 1],
            &[0x00],
        ];
        for bytes in cases {
            let read = read_token(bytes, &[]);
            assert!(matches!(read, Err(Unread::Bad(_))), "{bytes:?} {read:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn rubbish_never_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), at in 0usize..12) {
            let kinds = [0x81, 0xd1, 0xd2, 0xaa, 0xab, 0xad, 0xe3, 0xfd, 0xae, 0xe4, 0xa9, 0x79];
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kinds[at];
            }
            drop(read_token(&bytes, &[]));
        }
    }
}
