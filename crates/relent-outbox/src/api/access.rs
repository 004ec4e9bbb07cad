//! Who may ask: whoever has the token.

use std::fmt;
use std::str::FromStr;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HeaderMap, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use subtle::ConstantTimeEq;
use tokio::time::timeout;
use uuid::Uuid;

use super::answer::refuse;
use super::{PATIENCE, Shared};
use crate::store::Store;

/// The shortest token, in characters.
const SHORTEST: usize = 16;
/// The longest.
const LONGEST: usize = 1024;
/// The cookie of the page.
pub(super) const SESSION: &str = "relent_session";
/// Nothing is loaded from elsewhere, no script runs, nobody frames it, and forms go nowhere else.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

/// What whoever asks has to show.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A new one, of 244 random bits.
    #[must_use]
    pub fn new() -> Self {
        let (high, low) = (Uuid::new_v4(), Uuid::new_v4());
        Self(format!("relent_{}{}", high.simple(), low.simple()))
    }

    /// As it is shown to whoever may have it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is it. Takes the same time wherever two texts of the same length differ.
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

    /// Without the white space around it, which a file has at its end.
    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let token = text.trim();
        match (SHORTEST..=LONGEST).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            true => Ok(Self(token.to_owned())),
            false => Err(InvalidToken),
        }
    }
}

/// A text that is no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidToken;

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a token is {SHORTEST} to {LONGEST} visible ASCII characters without a space"
        )
    }
}

impl std::error::Error for InvalidToken {}

/// Lets a request pass whose sender has the token, and bounds its time.
pub(super) async fn guard<S: Store>(
    State(api): State<Shared<S>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let program = path.starts_with("/v1/") || path == "/metrics";
    let open = ["/health", "/openapi.json", "/login", "/style.css"].contains(&path);
    let headers = request.headers();
    let mut response = match () {
        () if program && !bearer(headers).is_some_and(|token| api.token.is(token)) => {
            let mut response = refuse(
                StatusCode::UNAUTHORIZED,
                "send the header `Authorization: Bearer TOKEN` with the token of this server",
            )
            .into_response();
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            response
        }
        () if !program && !open && !cookie(headers).is_some_and(|held| api.session.is(held)) => {
            Redirect::to("/login").into_response()
        }
        () => match timeout(PATIENCE, next.run(request)).await {
            Ok(response) => response,
            Err(_) => refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "it took longer than {} s, and nobody knows whether it was done: ask again",
                    PATIENCE.as_secs()
                ),
            )
            .into_response(),
        },
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    response
}

/// The token of a program. The name of the scheme may be in any capitals (RFC 9110 §11.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_start_matches(' '))
}

/// The cookie of a page.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let fields = headers.get_all(COOKIE).iter();
    fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(name, value)| (name == SESSION).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_only_itself_and_never_shown() {
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

    #[test]
    fn the_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        let none = HeaderValue::from_static("a=1; relent_sessions=x; b=relent_session=y");
        headers.insert(COOKIE, none);
        assert_eq!(cookie(&headers), None);
        headers.append(
            COOKIE,
            HeaderValue::from_static("c=2;relent_session=z=; d=3"),
        );
        assert_eq!(cookie(&headers), Some("z="));
    }
}
