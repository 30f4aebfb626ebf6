//! Pins of public keys: how a node recognizes a gateway whose certificate no authority has signed.
//!
//! A pin is the SHA-256 of the certificate's public key (its SubjectPublicKeyInfo in DER), as
//! `kubeadm join` has it. It stays the same if the certificate is renewed with the same key.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

const PREFIX: &str = "sha256:";

/// SHA-256 of a public key.
///
/// ```
/// use inference_protocol::pin::Pin;
///
/// let text = format!("sha256:{}", "0a".repeat(32));
/// let pin: Pin = text.parse()?;
/// assert_eq!((pin, pin.to_string()), (Pin([10; 32]), text));
/// assert!("sha256:0a".parse::<Pin>().is_err());
/// # Ok::<(), inference_protocol::pin::PinError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin(pub [u8; 32]);

/// A pin is `sha256:` and 64 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinError;

impl Display for PinError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("expected sha256: and 64 hex digits")
    }
}

impl std::error::Error for PinError {}

impl Display for Pin {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let hex = text.strip_prefix(PREFIX).ok_or(PinError)?;
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(PinError);
        }
        let mut digest = [0; 32];
        for (byte, digits) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| PinError)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| PinError)?;
        }
        Ok(Self(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pin_is_refused() {
        let digits = "0a".repeat(32);
        assert!(format!("sha256:{}", digits.to_uppercase()).parse::<Pin>().is_ok());
        for wrong in ["", "sha256:", "sha1:00", &digits, &format!("sha256:{digits}0")] {
            assert_eq!(wrong.parse::<Pin>(), Err(PinError), "{wrong}");
        }
        let sign = format!("sha256:+1{}", &digits[2..]);
        assert_eq!(sign.parse::<Pin>(), Err(PinError));
        let wide = format!("sha256:{}é", &digits[2..]);
        assert_eq!(wide.parse::<Pin>(), Err(PinError));
    }
}
