//! Who may ask: whoever has the token.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HeaderMap, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use subtle::ConstantTimeEq;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::answer::refuse;
use super::{Api, PATIENCE, Shared};
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

/// Whether the client of this request, or the person of this session, may see the contents of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Contents(pub(super) bool);

/// How long a session lasts at most.
const SIGNED_IN: Duration = Duration::from_secs(12 * 3600);
/// The most sessions. One more ends the oldest.
const MOST_SESSIONS: usize = 64;

/// A person who is signed in to the page.
#[derive(Clone)]
pub(super) struct Session {
    /// What the cookie holds.
    pub(super) id: Token,
    /// What each form holds.
    pub(super) form_token: Token,
    pub(super) contents: Contents,
    until: Instant,
}

/// The sessions of the page, the oldest first.
#[derive(Default)]
pub(super) struct Sessions(Mutex<VecDeque<Session>>);

impl Sessions {
    /// Those that have not expired.
    fn kept(&self) -> MutexGuard<'_, VecDeque<Session>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.retain(|session| session.until > now);
        kept
    }

    /// Signs a person in.
    pub(super) fn begin(&self, contents: Contents) -> Session {
        let session = Session {
            id: Token::new(),
            form_token: Token::new(),
            contents,
            until: Instant::now() + SIGNED_IN,
        };
        let mut kept = self.kept();
        if kept.len() >= MOST_SESSIONS {
            kept.pop_front();
        }
        kept.push_back(session.clone());
        session
    }

    /// Whose cookie this is.
    fn find(&self, cookie: &str) -> Option<Session> {
        let kept = self.kept();
        kept.iter().find(|session| session.id.is(cookie)).cloned()
    }

    /// Signs out: the cookie is nobody's from now on.
    pub(super) fn end(&self, session: &Session) {
        self.kept()
            .retain(|other| !other.id.is(session.id.as_str()));
    }
}

impl<S> Api<S> {
    /// Whether this token lets a client see contents; `None` if it is no token of this server.
    pub(super) fn contents_by(&self, token: &str) -> Option<Contents> {
        // Both are looked at, whichever it is.
        let may = self.content_token.as_ref().is_some_and(|own| own.is(token));
        (self.token.is(token) || may).then_some(Contents(may))
    }
}

/// Lets a request pass whose sender has a token, and bounds its time.
pub(super) async fn guard<S: Store>(
    State(api): State<Shared<S>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let program = path.starts_with("/v1/") || path == "/metrics";
    let open = ["/health", "/openapi.json", "/login", "/style.css"].contains(&path);
    let headers = request.headers();
    let contents = bearer(headers).and_then(|token| api.contents_by(token));
    let session = cookie(headers).and_then(|held| api.sessions.find(held));
    let may_pass = open
        || if program {
            contents.is_some()
        } else {
            session.is_some()
        };
    if let Some(contents) = contents {
        request.extensions_mut().insert(contents);
    }
    if let Some(session) = session {
        request.extensions_mut().insert(session);
    }
    let mut response = match () {
        () if program && !may_pass => {
            let mut response = refuse(
                StatusCode::UNAUTHORIZED,
                "send the header `Authorization: Bearer TOKEN` with the token of this server",
            )
            .into_response();
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            response
        }
        () if !may_pass => Redirect::to("/login").into_response(),
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

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_by_signing_out_or_after_12_hours() {
        let sessions = Sessions::default();
        let (one, other) = (
            sessions.begin(Contents(true)),
            sessions.begin(Contents(false)),
        );
        let found = |session: &Session| sessions.find(session.id.as_str()).is_some();
        assert!(found(&one) && found(&other));
        assert!(sessions.find(one.form_token.as_str()).is_none());
        sessions.end(&one);
        assert!(!found(&one) && found(&other));
        tokio::time::advance(SIGNED_IN - Duration::from_secs(1)).await;
        assert!(found(&other));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!found(&other));
    }

    #[tokio::test]
    async fn there_is_room_for_so_many_sessions_and_one_more_ends_the_oldest() {
        let sessions = Sessions::default();
        let all: Vec<_> = (0..=MOST_SESSIONS)
            .map(|_| sessions.begin(Contents(false)))
            .collect();
        let found = |session: &Session| sessions.find(session.id.as_str()).is_some();
        assert!(!found(&all[0]) && all[1..].iter().all(found));
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
