//! [`TokenId`]: the id of a token, and the private names under which its execution waits for the answer.
//!
//! A token is an event with a private name, whose value is a secret. The answer is a message of a private topic, which
//! contains the secret; its message_id makes sure that one answer counts.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::error::Error;
use crate::key::Key;
use crate::path::Path;
use crate::runtime::messaging::private_names::private_name;
use crate::text::quote;

/// The id of a token: the execution, the position of the call that has created the token, and a secret. The text has the
/// form `key.position.secret`, whose characters need no quoting in an address or a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenId {
    pub(crate) execution: Key,
    pub(crate) path: Path,
    pub(crate) secret: String,
}

impl TokenId {
    /// Returns a new secret. The random numbers are fit for cryptography.
    pub(crate) fn new_secret() -> String {
        Uuid::new_v4().simple().to_string()
    }

    /// Returns the name of the event that keeps the secret.
    pub(crate) fn event_name(path: &Path) -> String {
        private_name(&format!("token {path}"))
    }

    /// Returns the topic of the answer, and the id of its message.
    pub(crate) fn topic(&self) -> String {
        private_name(&format!("token {} {}", self.path, self.secret))
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.execution, self.path, self.secret)
    }
}

impl FromStr for TokenId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (key, rest) = text.split_once('.')?;
            let (position, secret) = rest.rsplit_once('.')?;
            let mut path = Path::root();
            for number in position.split('.') {
                path = path.child(number.parse().ok()?);
            }
            let is_secret = secret.len() == 32 && secret.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let execution = Key::from_text(key).filter(|_| is_secret)?;
            Some(Self { execution, path, secret: secret.to_owned() })
        };
        // no other spelling of an id
        parse().filter(|id| id.to_string() == text).ok_or_else(|| Error::Invalid {
            input: "token",
            reason: format!(
                "{} is not the id of a token; pass the id that create_token returned",
                quote(text)
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_a_token_has_one_spelling() {
        let path = Path::root().child(3).child(1 << 24);
        let id = TokenId { execution: Key::mint(7), path, secret: TokenId::new_secret() };
        let text = id.to_string();
        assert_eq!(text.parse::<TokenId>().unwrap(), id);
        let zero = text.replacen(".3.", ".03.", 1);
        for wrong in ["", ".", "..", "x.1.1", &text[1..], &text[..text.len() - 1], &zero] {
            assert_eq!(wrong.parse::<TokenId>().unwrap_err().code(), "SF-0001", "{wrong}");
        }
    }
}
