//! Redirects that reqwest follows within one attempt, seen where they happen.
//!
//! reqwest follows redirects inside one call, and its answer or error tells of the last request only.
//! After `POST` → 303 → `GET`, a refused connection or a 429 speaks of the `GET`, while the `POST` was
//! processed. The final URL does not show it either: a 303 may lead to the same URL.
//!
//! reqwest asks its redirect policy while the future of the call is polled, on the same thread. So a
//! policy made by [`watched`] leaves the address in a thread-local, and [`Watch`] looks there after each
//! poll. The other way round, it leaves there what reqwest does not give to a policy: the method, and since
//! which request of the attempt it has been that. [`limited`] finds loops by it.
//!
//! # What a hop means
//! A failure after a hop is ambiguous for the attempt as a whole, whatever the last server said. That
//! holds for every redirect status:
//!
//! - After 301, 302 and 303 to a `POST` another request was sent, by `GET`. RFC 9110 §15.4.4 describes
//!   303 as the usual answer to a `POST` that was processed, and user agents treat 301 and 302 alike.
//! - After 307 and 308 the same request was sent to another URL. RFC 9110 §15.4.8 and §15.4.9 say where
//!   the resource is and that the method stays; they do not say that the server which redirects has not
//!   acted. Nothing proves it, so it is not assumed.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Weak};

use http::{Method, StatusCode};
use relent::clock::{Clock, TokioClock};
use relent_core::Instant;
use reqwest::Url;
use reqwest::redirect::{Attempt, Policy};

use crate::secret::redact;

thread_local! {
    /// How many redirects watched policies were asked about on this thread.
    static ASKED: Cell<u32> = const { Cell::new(0) };
    /// The last of them.
    static LATEST: RefCell<Option<Box<Followed>>> = const { RefCell::new(None) };
    /// The watched policies that were made on this thread since a client began to be built.
    static MADE: RefCell<Option<Vec<Weak<Watched>>>> = const { RefCell::new(None) };
    /// What the attempt asks that is polled on this thread; `None` outside of one.
    static ASKING: Cell<Option<Asking>> = const { Cell::new(None) };
}

/// Follows redirects by this policy, and lets a [`Client`](crate::Client) and a
/// [`RetryMiddleware`](crate::RetryMiddleware) see each one that is followed.
///
/// After a redirect, a refused connection or a 429 speaks of the last request only. An earlier one, such
/// as a `POST` that was answered with 303, may have taken effect, so a request that is not repeatable is
/// not sent again then. [`recipe`](crate::recipe) watches reqwest's own policy. Use this function for a
/// redirect policy of your own, also for [`Policy::none`]: where redirects cannot be seen, a request that
/// is not repeatable is never sent again.
///
/// ```
/// use relent::Policy;
/// use relent_reqwest::Client;
/// use relent_reqwest::{recipe, watched};
/// use reqwest::redirect;
///
/// let recipe = || recipe().redirect(watched(redirect::Policy::limited(3)));
/// let client = Client::made_by(recipe, Policy::STANDARD.clone())?;
/// # drop(client);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn watched(policy: Policy) -> Policy {
    // It lives as long as the policy, which is dropped if another takes its place in a recipe.
    let alive = Arc::new(Watched {
        // A policy says so only there.
        none: format!("{policy:?}") == format!("{:?}", Policy::none()),
    });
    MADE.with_borrow_mut(|made| {
        if let Some(made) = made {
            made.push(Arc::downgrade(&alive));
        }
    });
    Policy::custom(move |attempt| {
        let _: &Arc<Watched> = &alive;
        note(&attempt);
        policy.redirect(attempt)
    })
}

/// Follows at most `most` redirects, as [`Policy::limited`] does, but no loop, and none to something that is
/// not HTTP. These end the attempt with [`RedirectRefused`], which is permanent. It is [`watched`].
///
/// A loop ends at its first repetition: when the same method would ask the same URL again. In a program
/// with reqwest's feature `cookies` a repetition may differ by its cookies, so there it ends at the second.
///
/// ```
/// use relent_reqwest::{limited, recipe};
///
/// let recipe = || recipe().redirect(limited(3));
/// # let _ = recipe;
/// ```
#[must_use]
pub fn limited(most: usize) -> Policy {
    watched(Policy::custom(move |attempt| {
        match refusal(&attempt, most) {
            Some(refused) => attempt.error(refused),
            None => attempt.follow(),
        }
    }))
}

fn refusal(attempt: &Attempt<'_>, most: usize) -> Option<RedirectRefused> {
    let (to, previous) = (attempt.url(), attempt.previous());
    let why = if !matches!(to.scheme(), "http" | "https") {
        Refusal::NotHttp
    } else if is_loop(attempt.status(), to, previous) {
        Refusal::Loop
    } else if previous.len() > most {
        Refusal::TooMany(most)
    } else {
        return None;
    };
    let mut to = to.clone();
    redact(&mut to);
    Some(RedirectRefused { why, to })
}

/// Whether the same request was sent before within this attempt.
fn is_loop(status: StatusCode, to: &Url, previous: &[Url]) -> bool {
    match ASKING.get() {
        Some(asking) => {
            let since = usize::try_from(asking.since).unwrap_or(usize::MAX);
            let same = previous.iter().skip(since).filter(|url| *url == to);
            same.count() > usize::from(may_keep_cookies())
        }
        // A client without retries: nothing tells the method, but these two keep it.
        None => {
            let keeps = matches!(status.as_u16(), 307 | 308);
            keeps && previous.last() == Some(to) && !may_keep_cookies()
        }
    }
}

/// Whether reqwest can keep cookies in this program. It shows in whether its builder has the method for that: if
/// not, the one of the trait is called.
fn may_keep_cookies() -> bool {
    use std::any::TypeId;

    /// Stands for a builder that has no such method.
    struct Cannot;

    #[allow(unused, reason = "reqwest's own comes before it, if it has it")]
    trait KeepsCookies: Sized {
        fn cookie_store(self, _: bool) -> Cannot {
            Cannot
        }
    }

    impl KeepsCookies for reqwest::ClientBuilder {}

    fn returned<T: 'static>(_: fn(reqwest::ClientBuilder) -> T) -> TypeId {
        TypeId::of::<T>()
    }

    returned(|builder| builder.cookie_store(true)) != TypeId::of::<Cannot>()
}

/// A redirect that is not followed, by [`limited`].
///
/// It is the innermost source of the error of reqwest. The URL in its text has no credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedirectRefused {
    why: Refusal,
    to: Url,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    Loop,
    NotHttp,
    TooMany(usize),
}

impl RedirectRefused {
    /// Whether the same method would have asked the same URL again.
    #[must_use]
    pub fn is_loop(&self) -> bool {
        self.why == Refusal::Loop
    }

    /// Where the redirect leads, without credentials.
    #[must_use]
    pub const fn url(&self) -> &Url {
        &self.to
    }
}

impl fmt::Display for RedirectRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.as_str();
        match self.why {
            Refusal::Loop => write!(
                f,
                "redirect loop: {to} was already requested (its Location is empty or leads back)"
            ),
            Refusal::NotHttp => write!(
                f,
                "redirect to {to}: only http:// and https:// are followed"
            ),
            Refusal::TooMany(most) => write!(
                f,
                "too many redirects: {most} were followed, the next leads to {to}"
            ),
        }
    }
}

impl Error for RedirectRefused {}

/// What an attempt asks at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asking {
    verb: Verb,
    /// Which request of the attempt, from 0, was the first with this method.
    since: u32,
}

/// A method, as far as redirects change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Get,
    Head,
    Post,
    Other,
}

impl Asking {
    /// An attempt that begins with this method.
    pub(crate) fn of(method: &Method) -> Self {
        let verb = match *method {
            Method::HEAD => Verb::Head,
            Method::POST => Verb::Post,
            Method::GET => Verb::Get,
            _ => Verb::Other,
        };
        Self { verb, since: 0 }
    }

    /// After a redirect with this status, which the request of this number follows: reqwest makes a GET of a
    /// POST after 301 and 302, and after 303 of anything but a HEAD.
    fn redirected(self, status: StatusCode, number: u32) -> Self {
        match (status.as_u16(), self.verb) {
            (301 | 302, Verb::Post) | (303, Verb::Post | Verb::Other) => Self {
                verb: Verb::Get,
                since: number,
            },
            _ => self,
        }
    }
}

/// Notes a redirect. It counts as followed: if the policy stops there, the redirect itself is the
/// response, which is no failure.
fn note(attempt: &Attempt<'_>) {
    let followed = Followed {
        url: attempt.url().clone(),
        at: TokioClock.now(),
    };
    LATEST.set(Some(Box::new(followed)));
    if let Some(asking) = ASKING.get() {
        let number = u32::try_from(attempt.previous().len()).unwrap_or(u32::MAX);
        ASKING.set(Some(asking.redirected(attempt.status(), number)));
    }
    ASKED.set(ASKED.get().wrapping_add(1));
}

/// A watched policy.
struct Watched {
    /// It follows no redirect.
    none: bool,
}

/// What is known of the redirects of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Redirects {
    /// They are seen.
    pub(crate) watched: bool,
    /// None is followed.
    pub(crate) none: bool,
}

/// Builds a client, and tells whether its redirects are watched: a watched policy that was made
/// meanwhile is still alive then, in the client.
pub(crate) fn built(
    build: impl FnOnce() -> reqwest::Result<reqwest::Client>,
) -> reqwest::Result<(reqwest::Client, Redirects)> {
    /// Puts back what was there, also if a recipe panics.
    struct Outer(Option<Vec<Weak<Watched>>>);
    impl Drop for Outer {
        fn drop(&mut self) {
            MADE.set(self.0.take());
        }
    }
    let _outer = Outer(MADE.replace(Some(Vec::new())));
    let client = build()?;
    let made = MADE.take().unwrap_or_default();
    let alive: Vec<_> = made.iter().filter_map(Weak::upgrade).collect();
    let redirects = Redirects {
        watched: !alive.is_empty(),
        none: alive.iter().any(|policy| policy.none),
    };
    Ok((client, redirects))
}

/// The last redirect that was followed.
#[derive(Debug)]
pub(crate) struct Followed {
    /// Where to.
    url: Url,
    /// When.
    pub(crate) at: Instant,
}

impl Followed {
    /// Where to.
    pub(crate) const fn url(&self) -> &Url {
        &self.url
    }

    /// Who was asked last, given what came of it; `None` if nobody was, since reqwest would not follow
    /// the last redirect.
    pub(crate) fn by<'a>(
        &'a self,
        response: Option<&'a reqwest::Response>,
        error: Option<&reqwest::Error>,
    ) -> Option<&'a Url> {
        match (response, error) {
            (Some(response), _) => Some(response.url()),
            (None, Some(error)) if error.is_redirect() || error.is_builder() => None,
            (None, _) => Some(&self.url),
        }
    }
}

/// Sees the redirects that are followed while one attempt is polled.
#[derive(Default, Debug)]
pub(crate) struct Watch {
    followed: Option<Box<Followed>>,
    /// `None` if nothing is sent.
    asking: Option<Asking>,
}

impl Watch {
    /// For an attempt that begins so.
    #[inline]
    pub(crate) const fn over(asking: Option<Asking>) -> Self {
        Self {
            followed: None,
            asking,
        }
    }

    /// Polls a part of the attempt.
    #[inline]
    pub(crate) fn poll<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        let before = ASKED.get();
        let around = ASKING.replace(self.asking);
        let polled = poll();
        self.asking = ASKING.replace(around);
        if ASKED.get() != before {
            self.take_note(before);
        }
        polled
    }

    #[cold]
    fn take_note(&mut self, before: u32) {
        // Whoever polls around this attempt has not been redirected.
        ASKED.set(before);
        if let Some(followed) = LATEST.take() {
            self.followed = Some(followed);
        }
    }

    /// Lets the error of an attempt name the address that was asked last. reqwest names the first, which
    /// has answered.
    pub(crate) fn name_asked(&self, error: &mut reqwest::Error) {
        let Some(followed) = self.followed() else {
            return;
        };
        if let Some(asked) = followed.by(None, Some(error))
            && let Some(named) = error.url_mut()
        {
            *named = asked.clone();
            redact(named);
        }
    }

    /// The last redirect, if one was followed.
    #[inline]
    pub(crate) fn followed(&self) -> Option<&Followed> {
        self.followed.as_deref()
    }
}
