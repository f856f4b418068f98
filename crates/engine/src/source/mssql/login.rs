//! The two messages before the first statement: PRELOGIN, which settles the encryption, and LOGIN7.

use super::address::{Encryption, LOGIN_FIELD_UNITS_MAX, ServerAddress};
use super::wire::{PACKET_SIZE_DEFAULT, read_whole, utf16};
use crate::error::{Error, ErrorKind, Result};

/// TDS 7.4, which SQL Server 2012 and later speak.
const TDS_VERSION: u32 = 0x7400_0004;
/// How this program is called in sys.dm_exec_sessions.
const PROGRAM: &str = "pagehaul";

const ENCRYPT_OFF: u8 = 0;
const ENCRYPT_ON: u8 = 1;
const ENCRYPT_NOT_SUPPORTED: u8 = 2;
const ENCRYPT_REQUIRED: u8 = 3;

/// What the two sides have agreed to encrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreed {
    Nothing,
    LogIn,
    All,
}

/// The content of PRELOGIN.
pub(super) fn prelogin(encryption: Encryption) -> Vec<u8> {
    let wish = match encryption {
        Encryption::Strict | Encryption::Mandatory => ENCRYPT_ON,
        Encryption::Optional => ENCRYPT_OFF,
        Encryption::Plain => ENCRYPT_NOT_SUPPORTED,
    };
    // Version 0.1 of this client, encryption, no certain instance, no thread, no multiple active results.
    let options: [(u8, &[u8]); 5] = [(0, &[0, 1, 0, 0, 0, 0]), (1, &[wish]), (2, &[0]), (3, &[0; 4]), (4, &[0])];
    let mut offset = (options.len() * 5 + 1) as u16;
    let (mut table, mut content) = (Vec::new(), Vec::<u8>::new());
    for (number, value) in options {
        table.push(number);
        table.extend(offset.to_be_bytes());
        table.extend((value.len() as u16).to_be_bytes());
        content.extend(value);
        offset += value.len() as u16;
    }
    table.push(0xff);
    table.extend(content);
    table
}

/// What the server's PRELOGIN agrees to.
///
/// # Errors
/// `Source` for an answer that is none, and where it offers less than was asked for.
pub(super) fn agree(address: &ServerAddress, answer: &[u8]) -> Result<Agreed> {
    let offered = read_whole(answer, "the first answer", |cursor| {
        loop {
            let option = cursor.u8()?;
            if option == 0xff {
                return Ok(None);
            }
            // Offsets and lengths are big-endian here, and nowhere else.
            let (offset, size) = (cursor.u16()?.swap_bytes(), cursor.u16()?.swap_bytes());
            if option == 1 {
                let at = usize::from(offset);
                return Ok((size >= 1).then(|| answer.get(at).copied()).flatten());
            }
        }
    })?;
    let refused =
        |cause: &str, hint: &str| Err(Error::new(ErrorKind::Source, format!("connect to {address}"), cause).hint(hint));
    match (address.encryption, offered) {
        // There TLS has begun before.
        (Encryption::Strict, _) => Ok(Agreed::All),
        (Encryption::Mandatory, Some(ENCRYPT_ON | ENCRYPT_REQUIRED)) => Ok(Agreed::All),
        (Encryption::Optional, Some(ENCRYPT_OFF)) => Ok(Agreed::LogIn),
        (Encryption::Optional, Some(ENCRYPT_ON | ENCRYPT_REQUIRED)) => Ok(Agreed::All),
        (Encryption::Plain, Some(ENCRYPT_NOT_SUPPORTED | ENCRYPT_OFF)) => Ok(Agreed::Nothing),
        (Encryption::Plain, Some(ENCRYPT_ON | ENCRYPT_REQUIRED)) => {
            refused("the server wants the connection encrypted", "use --encrypt mandatory")
        }
        (_, Some(ENCRYPT_NOT_SUPPORTED | ENCRYPT_OFF)) => refused(
            "the server does not encrypt",
            "give it a certificate, or use --encrypt plain on a network that you trust with the password",
        ),
        _ => refused("it does not answer as SQL Server does", "is this the right port?"),
    }
}

/// The content of LOGIN7.
pub(super) fn login(address: &ServerAddress, host: &str) -> Vec<u8> {
    const FIXED_SIZE: usize = 94;
    let cut = |text: &str| -> Vec<u8> { utf16(text).into_iter().take(LOGIN_FIELD_UNITS_MAX * 2).collect() };
    let password: Vec<u8> = utf16(address.password.reveal()).into_iter().map(obscure).collect();
    // Host, user, password, program, server, (extension), library, language, database.
    let fields = [
        cut(host),
        cut(&address.user),
        password,
        cut(PROGRAM),
        cut(&address.host),
        Vec::new(),
        cut(PROGRAM),
        cut("us_english"),
        Vec::new(),
    ];
    let total = FIXED_SIZE + fields.iter().map(Vec::len).sum::<usize>();
    let mut bytes = Vec::with_capacity(total);
    bytes.extend((total as u32).to_le_bytes());
    bytes.extend(TDS_VERSION.to_le_bytes());
    bytes.extend((PACKET_SIZE_DEFAULT as u32).to_le_bytes());
    // Version of the program, process id, connection id.
    bytes.extend([0; 12]);
    // Warn about language and database changes, little-endian numbers; SQL; no flags more; time zone, collation.
    bytes.extend([0xe0, 0x03, 0, 0]);
    bytes.extend([0; 8]);
    let mut offset = FIXED_SIZE;
    for field in &fields {
        bytes.extend((offset as u16).to_le_bytes());
        bytes.extend(((field.len() / 2) as u16).to_le_bytes());
        offset += field.len();
    }
    // Client id; SSPI, attached file and new password, all empty; long SSPI.
    bytes.extend([0; 6]);
    for _ in 0..3 {
        bytes.extend((offset as u16).to_le_bytes());
        bytes.extend([0, 0]);
    }
    bytes.extend([0; 4]);
    fields.iter().for_each(|field| bytes.extend(field));
    bytes
}

/// Hides a byte of a password from the casual eye, as the protocol wants it; it is no protection.
fn obscure(byte: u8) -> u8 {
    byte.rotate_left(4) ^ 0xa5
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::mssql::address::Password;

    fn address(encryption: Encryption) -> ServerAddress {
        let address = ServerAddress::parse("db1", "sa", Password::new("a")).unwrap();
        ServerAddress { encryption, ..address }
    }

    fn answer(offer: u8) -> Vec<u8> {
        vec![0, 0, 11, 0, 6, 1, 0, 17, 0, 1, 0xff, 17, 0, 0, 0, 0, 0, offer]
    }

    #[test]
    fn never_less_encryption_than_asked_for() {
        let agreed = |mode, offer| agree(&address(mode), &answer(offer)).ok();
        assert_eq!(agreed(Encryption::Mandatory, ENCRYPT_ON), Some(Agreed::All));
        assert_eq!(agreed(Encryption::Mandatory, ENCRYPT_OFF), None);
        assert_eq!(agreed(Encryption::Mandatory, ENCRYPT_NOT_SUPPORTED), None);
        assert_eq!(agreed(Encryption::Optional, ENCRYPT_OFF), Some(Agreed::LogIn));
        assert_eq!(agreed(Encryption::Optional, ENCRYPT_REQUIRED), Some(Agreed::All));
        assert_eq!(agreed(Encryption::Optional, ENCRYPT_NOT_SUPPORTED), None);
        assert_eq!(agreed(Encryption::Plain, ENCRYPT_NOT_SUPPORTED), Some(Agreed::Nothing));
        assert_eq!(agreed(Encryption::Plain, ENCRYPT_REQUIRED), None);
        assert_eq!(agreed(Encryption::Mandatory, 9), None);
        let error = agree(&address(Encryption::Optional), &answer(ENCRYPT_NOT_SUPPORTED)).unwrap_err();
        assert!(error.hint_text().unwrap().contains("--encrypt plain"), "{error}");
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        for bad in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff], &[1, 0xff, 0xff, 0, 1, 0xff]] {
            assert_eq!(agree(&address(Encryption::Mandatory), bad).unwrap_err().kind(), ErrorKind::Source);
        }
    }

    #[test]
    fn what_we_send_is_what_we_would_understand() {
        let own = prelogin(Encryption::Mandatory);
        assert_eq!(agree(&address(Encryption::Mandatory), &own).unwrap(), Agreed::All);
        let login = login(&address(Encryption::Mandatory), "here");
        assert_eq!(u32::from_le_bytes(login[..4].try_into().unwrap()) as usize, login.len());
        let at = usize::from(u16::from_le_bytes([login[40], login[41]]));
        assert_eq!((login[42], login[at], login[at + 1]), (2, b's', 0), "the user");
        let at = usize::from(u16::from_le_bytes([login[44], login[45]]));
        // 'a' is 0x61: its halves swapped give 0x16, and that with 0xa5 is 0xb3.
        assert_eq!(login[at..at + 2], [0xb3, 0xa5], "the password");
    }
}
