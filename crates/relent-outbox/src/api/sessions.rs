//! Sessions of people who are signed in to the page.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::token::Token;

/// Whether the client of this request or session may see the contents of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Contents(pub(super) bool);

/// The duration of a session: 12 h.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// The largest number of sessions. One more ends the oldest.
const MAX_SESSIONS: usize = 64;

/// The session of a person who is signed in to the page.
#[derive(Clone)]
pub(super) struct PageSession {
    /// The value of the cookie.
    pub(super) id: Token,
    /// The value in each form, against cross-site request forgery.
    pub(super) form_token: Token,
    pub(super) contents: Contents,
    until: Instant,
}

/// The sessions of the page, the oldest first.
#[derive(Default)]
pub(super) struct Sessions(Mutex<VecDeque<PageSession>>);

impl Sessions {
    /// The sessions that have not expired.
    fn kept(&self) -> MutexGuard<'_, VecDeque<PageSession>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.retain(|session| session.until > now);
        kept
    }

    /// Starts a session.
    pub(super) fn begin(&self, contents: Contents) -> PageSession {
        let session = PageSession {
            id: Token::new(),
            form_token: Token::new(),
            contents,
            until: Instant::now() + SESSION_LIFETIME,
        };
        let mut kept = self.kept();
        if kept.len() >= MAX_SESSIONS {
            kept.pop_front();
        }
        kept.push_back(session.clone());
        session
    }

    /// Finds the session of a cookie.
    pub(super) fn find(&self, cookie: &str) -> Option<PageSession> {
        let kept = self.kept();
        kept.iter().find(|session| session.id.is(cookie)).cloned()
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &PageSession) {
        self.kept()
            .retain(|other| !other.id.is(session.id.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_by_signing_out_or_after_12_hours() {
        let sessions = Sessions::default();
        let (one, other) = (
            sessions.begin(Contents(true)),
            sessions.begin(Contents(false)),
        );
        let found = |session: &PageSession| sessions.find(session.id.as_str()).is_some();
        assert!(found(&one) && found(&other));
        assert!(sessions.find(one.form_token.as_str()).is_none());
        sessions.end(&one);
        assert!(!found(&one) && found(&other));
        tokio::time::advance(SESSION_LIFETIME - Duration::from_secs(1)).await;
        assert!(found(&other));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!found(&other));
    }

    #[tokio::test]
    async fn one_session_above_the_limit_ends_the_oldest() {
        let sessions = Sessions::default();
        let all: Vec<_> = (0..=MAX_SESSIONS)
            .map(|_| sessions.begin(Contents(false)))
            .collect();
        let found = |session: &PageSession| sessions.find(session.id.as_str()).is_some();
        assert!(!found(&all[0]) && all[1..].iter().all(found));
    }
}
