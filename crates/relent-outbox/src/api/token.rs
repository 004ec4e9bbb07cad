//! Bearer token of clients.

use std::fmt;
use std::str::FromStr;

use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The shortest token, in characters.
const MIN_TOKEN_CHARS: usize = 16;
/// The longest token, in characters.
const MAX_TOKEN_CHARS: usize = 1024;

/// A bearer token.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Creates a random token with 244 bits of entropy.
    #[must_use]
    pub fn new() -> Self {
        let (high, low) = (Uuid::new_v4(), Uuid::new_v4());
        Self(format!("relent_{}{}", high.simple(), low.simple()))
    }

    /// The secret text, for clients that may have it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the text equals the token. The comparison takes constant time for texts of the same length.
    #[must_use]
    pub fn is(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    /// Trims white space, such as a newline at the end of a file.
    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let token = text.trim();
        match (MIN_TOKEN_CHARS..=MAX_TOKEN_CHARS).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            true => Ok(Self(token.to_owned())),
            false => Err(InvalidToken),
        }
    }
}

/// The error for a text that is not a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidToken;

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a token is {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} visible ASCII characters without a space"
        )
    }
}

impl std::error::Error for InvalidToken {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_matches_only_itself_and_is_never_shown() {
        let token = Token::new();
        assert!(token.is(token.as_str()) && !token.is(Token::new().as_str()));
        for wrong in ["", &token.as_str()[1..], &format!("{}x", token.as_str())] {
            assert!(!token.is(wrong), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token");
        let read: Token = format!("  {}\n", token.as_str()).parse().unwrap();
        assert!(read.is(token.as_str()));
        for wrong in ["", "short", "sixteen letters and", &"x".repeat(1025)] {
            assert_eq!(wrong.parse::<Token>().unwrap_err(), InvalidToken);
        }
    }
}
