//! Tracks the redirects that reqwest follows within one attempt.
//!
//! reqwest follows redirects inside one call, and its response or error describes the last request only. After
//! `POST` → 303 → `GET`, a refused connection or a 429 belongs to the `GET`, but the `POST` was processed. The final
//! URL does not show it either: a 303 may lead to the same URL.
//!
//! reqwest calls its redirect policy while the future of the call is polled, on the same thread. A policy made by
//! [`tracked`] stores the URL in a thread-local, and [`RedirectWatch`] reads it after each poll. In the other direction,
//! `RedirectWatch` stores data that reqwest does not pass to a policy: the method, and the first request of the attempt with
//! that method. [`limited`] uses it to find loops.
//!
//! # Meaning of a redirect
//! A failure after a redirect is ambiguous for the attempt as a whole, regardless of the last server's response.
//! That holds for every redirect status:
//!
//! - After 301, 302 and 303 to a `POST`, a `GET` is sent. RFC 9110 §15.4.4 describes 303 as the usual response to a
//!   `POST` that was processed, and user agents treat 301 and 302 alike.
//! - After 307 and 308 the same request is sent to another URL. RFC 9110 §15.4.8 and §15.4.9 state where the resource
//!   is and that the method stays. They do not state that the redirecting server has done nothing, so that is not
//!   assumed.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Weak};

use http::header::LOCATION;
use http::{Method, StatusCode, Uri};
use relent::clock::{Clock, TokioClock};
use relent_core::Instant;
use reqwest::Url;
use reqwest::redirect::{Attempt, Policy};

use crate::secret::redact;

thread_local! {
    /// Number of redirects on this thread.
    static REDIRECTS: Cell<u32> = const { Cell::new(0) };
    /// The last redirect.
    static LATEST_REDIRECT: RefCell<Option<Box<Followed>>> = const { RefCell::new(None) };
    /// Tracked policies made on this thread while a client is being built.
    static TRACKED_POLICIES: RefCell<Option<Vec<Weak<TrackedPolicy>>>> = const { RefCell::new(None) };
    /// The current request of the attempt that is polled on this thread; `None` outside of one.
    static CURRENT_REQUEST: Cell<Option<CurrentRequest>> = const { Cell::new(None) };
}

/// Tracks this redirect policy, so that a [`Client`](crate::Client) and a
/// [`RetryMiddleware`](crate::RetryMiddleware) see every redirect that is followed.
///
/// After a redirect, a refused connection or a 429 describes the last request only. An earlier request, such as a
/// `POST` with response 303, may have taken effect, so a request that is not repeatable is not sent again.
/// [`default_builder`](crate::default_builder) tracks its own policy. Wrap every other redirect policy in this function, including
/// [`Policy::none`]. Where redirects are not tracked, a request that is not repeatable is never sent again.
///
/// If the policy is [`Policy::limited`], each redirect that cannot be followed is an error, as with [`limit_redirects`].
/// The error has neither the head nor the body of the redirect. To read those, such as of a 301 of Amazon S3 without
/// `Location`, use [`Policy::none`] or a [`Policy::custom`].
///
/// ```
/// use relent::Policy;
/// use relent_reqwest::Client;
/// use relent_reqwest::{default_builder, track_redirects};
/// use reqwest::redirect;
///
/// let builder = || default_builder().redirect(track_redirects(redirect::Policy::limited(3)));
/// let client = Client::from_builder(builder, Policy::STANDARD.clone())?;
/// # drop(client);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn track_redirects(policy: Policy) -> Policy {
    // Only its `Debug` text identifies the kind of a policy.
    let kind = format!("{policy:?}");
    track(
        policy,
        TrackedPolicy {
            none: kind == format!("{:?}", Policy::none()),
            follows: kind.starts_with("Policy(Limit("),
        },
    )
}

fn track(policy: Policy, kind: TrackedPolicy) -> Policy {
    // Lives as long as the policy. A builder drops the policy when another replaces it.
    let alive = Arc::new(kind);
    TRACKED_POLICIES.with_borrow_mut(|made| {
        if let Some(made) = made {
            made.push(Arc::downgrade(&alive));
        }
    });
    Policy::custom(move |attempt| {
        let _: &Arc<TrackedPolicy> = &alive;
        store_redirect(&attempt);
        policy.redirect(attempt)
    })
}

/// Whether clients follow a response with this status to its `Location`: 301, 302, 303, 307 and 308.
#[must_use]
pub fn is_followed(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Follows at most `most` redirects, and neither loops nor redirects to a scheme other than HTTP.
///
/// Like [`Policy::limited`], but [tracked](track_redirects). A redirect beyond these limits ends the attempt with
/// [`RedirectRefused`], which is permanent. A loop ends at its first repetition: the same method and the same URL.
/// In a program with reqwest's feature `cookies`, it ends at the second one, because the cookies may differ.
///
/// If a [`Client`](crate::Client) builds the reqwest client ([`Client::from_builder`](crate::Client::from_builder)),
/// each other redirect that cannot be followed is an error, too: one without a valid `Location`, and one that keeps a
/// request body which is not in memory. reqwest alone returns these redirects as responses; the error has neither
/// their head nor their body.
///
/// ```
/// use relent_reqwest::{default_builder, limit_redirects};
///
/// let builder = || default_builder().redirect(limit_redirects(3));
/// # let _ = default_builder;
/// ```
#[must_use]
pub fn limit_redirects(most: usize) -> Policy {
    let limited = Policy::custom(move |attempt| match refusal(&attempt, most) {
        Some(refused) => attempt.error(refused),
        None => attempt.follow(),
    });
    let kind = TrackedPolicy {
        none: false,
        follows: true,
    };
    track(limited, kind)
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
    Some(RedirectRefused::new(why, Some(to.clone())))
}

/// The reason why this response of a policy that [follows](Redirects::follows) is a redirect. `None` if it is none.
///
/// reqwest returns a redirect as the response, and does not call the policy, if it cannot make the next request.
#[inline]
pub(crate) fn unfollowed(response: &reqwest::Response) -> Option<RedirectRefused> {
    is_followed(response.status()).then(|| why_unfollowed(response))
}

/// Whether reqwest returned this redirect only because it cannot send the body again.
#[cold]
pub(crate) fn is_unfollowed_for_its_body(response: &reqwest::Response) -> bool {
    why_unfollowed(response).why == Refusal::Body
}

#[cold]
fn why_unfollowed(response: &reqwest::Response) -> RedirectRefused {
    let Some(location) = response.headers().get(LOCATION) else {
        return RedirectRefused::new(Refusal::NoLocation, None);
    };
    let to = std::str::from_utf8(location.as_bytes()).ok();
    let Some(to) = to.and_then(|to| response.url().join(to).ok()) else {
        return RedirectRefused::new(Refusal::NotUrl, None);
    };
    let why = match to.scheme() {
        "http" | "https" if to.as_str().parse::<Uri>().is_ok() => Refusal::Body,
        "http" | "https" => Refusal::NotUrl,
        _ => Refusal::NotHttp,
    };
    RedirectRefused::new(why, Some(to))
}

/// Whether the attempt has already sent the same request.
fn is_loop(status: StatusCode, to: &Url, previous: &[Url]) -> bool {
    match CURRENT_REQUEST.get() {
        Some(current_request) => {
            let since = usize::try_from(current_request.since).unwrap_or(usize::MAX);
            let same = previous.iter().skip(since).filter(|url| *url == to);
            same.count() > usize::from(may_keep_cookies())
        }
        // A client without retries: the method is unknown, but these two statuses keep it.
        None => {
            let keeps = matches!(status.as_u16(), 307 | 308);
            keeps && previous.last() == Some(to) && !may_keep_cookies()
        }
    }
}

/// Whether reqwest is built with cookies. If its builder lacks the method `cookie_store`, the call resolves to the
/// trait method below.
fn may_keep_cookies() -> bool {
    use std::any::TypeId;

    /// Returned by the trait method, if the builder has no such method.
    struct MissingMethod;

    #[allow(unused, reason = "reqwest's own comes before it, if it has it")]
    trait KeepsCookies: Sized {
        fn cookie_store(self, _: bool) -> MissingMethod {
            MissingMethod
        }
    }

    impl KeepsCookies for reqwest::ClientBuilder {}

    fn returned<T: 'static>(_: fn(reqwest::ClientBuilder) -> T) -> TypeId {
        TypeId::of::<T>()
    }

    returned(|builder| builder.cookie_store(true)) != TypeId::of::<MissingMethod>()
}

/// Error of a redirect that [`limit_redirects`] does not follow.
///
/// It is the innermost source of the reqwest error in [`AttemptError::Transport`](crate::AttemptError::Transport). If
/// reqwest has returned the redirect as a response, it is [`AttemptError::Redirect`](crate::AttemptError::Redirect).
/// The URL in its text has no credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedirectRefused {
    why: Refusal,
    to: Option<Url>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    Loop,
    NotHttp,
    TooMany(usize),
    NoLocation,
    NotUrl,
    /// The redirect keeps the body, which cannot be sent again.
    Body,
}

impl RedirectRefused {
    fn new(why: Refusal, mut to: Option<Url>) -> Self {
        if let Some(to) = &mut to {
            redact(to);
        }
        Self { why, to }
    }

    /// Whether the redirect is a loop: the same method and the same URL again.
    #[must_use]
    pub fn is_loop(&self) -> bool {
        self.why == Refusal::Loop
    }

    /// The URL that the redirect leads to, without credentials. `None` without a valid `Location`.
    #[must_use]
    pub const fn url(&self) -> Option<&Url> {
        self.to.as_ref()
    }
}

impl fmt::Display for RedirectRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.as_ref().map_or("", Url::as_str);
        match self.why {
            Refusal::NoLocation => f.write_str("redirect not followed: it has no Location"),
            Refusal::NotUrl => f.write_str("redirect not followed: its Location is not a URL"),
            Refusal::Body => write!(
                f,
                "redirect to {to}: the body of the request is not in memory, and is not sent again"
            ),
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

/// The method of the current request of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CurrentRequest {
    verb: Verb,
    /// The index (from 0) of the first request of the attempt with this method.
    since: u32,
}

/// The methods that redirects treat differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Get,
    Head,
    Post,
    Other,
}

impl CurrentRequest {
    /// The start of an attempt with this method.
    pub(crate) fn of(method: &Method) -> Self {
        let verb = match *method {
            Method::HEAD => Verb::Head,
            Method::POST => Verb::Post,
            Method::GET => Verb::Get,
            _ => Verb::Other,
        };
        Self { verb, since: 0 }
    }

    /// Whether a redirect of the attempt that is polled on this thread has changed the method. Its body is dropped then.
    pub(crate) fn has_changed_method() -> bool {
        let current_request = CURRENT_REQUEST.get();
        current_request.is_some_and(|current_request| current_request.since > 0)
    }

    /// The state after a redirect with this status, for request `number`. reqwest turns a POST into a GET after 301
    /// and 302, and any method but HEAD after 303.
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

/// Stores a redirect. It counts as followed: if the policy stops there, the redirect itself is the response, which
/// is not a failure.
fn store_redirect(attempt: &Attempt<'_>) {
    store_next_request(attempt.url());
    if let Some(current_request) = CURRENT_REQUEST.get() {
        let number = u32::try_from(attempt.previous().len()).unwrap_or(u32::MAX);
        CURRENT_REQUEST.set(Some(current_request.redirected(attempt.status(), number)));
    }
}

/// Stores that the attempt that is polled on this thread sends another request, to this URL, because a server has
/// responded with a redirect.
pub(crate) fn store_next_request(url: &Url) {
    let followed = Followed {
        url: url.clone(),
        at: TokioClock.now(),
    };
    LATEST_REDIRECT.set(Some(Box::new(followed)));
    REDIRECTS.set(REDIRECTS.get().wrapping_add(1));
}

/// Marker of a tracked policy.
struct TrackedPolicy {
    /// Whether the policy follows no redirects.
    none: bool,
    /// Whether the policy follows every redirect or makes it an error.
    follows: bool,
}

/// Whether this client is known to follow no redirects. Only its `Debug` text has its policy, if that is not tracked.
pub(crate) fn are_off(http: &reqwest::Client) -> bool {
    let none = format!("redirect_policy: {:?}", format!("{:?}", Policy::none()));
    format!("{http:?}").contains(&none)
}

/// Properties of the redirects of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Redirects {
    /// All redirects are tracked.
    pub(crate) tracked: bool,
    /// No redirects are followed.
    pub(crate) none: bool,
    /// Every redirect is followed or is an error, so a redirect is no response.
    pub(crate) follows: bool,
}

/// Builds a client and detects whether its redirects are tracked: a tracked policy that was made during the build
/// and is still alive must be in the client.
pub(crate) fn built(
    build: impl FnOnce() -> reqwest::Result<reqwest::Client>,
) -> reqwest::Result<(reqwest::Client, Redirects)> {
    /// Restores the outer value, even if the builder function panics.
    struct RestoreOuter(Option<Vec<Weak<TrackedPolicy>>>);
    impl Drop for RestoreOuter {
        fn drop(&mut self) {
            TRACKED_POLICIES.set(self.0.take());
        }
    }
    let _outer = RestoreOuter(TRACKED_POLICIES.replace(Some(Vec::new())));
    let client = build()?;
    let made = TRACKED_POLICIES.take().unwrap_or_default();
    let alive: Vec<_> = made.iter().filter_map(Weak::upgrade).collect();
    let redirects = Redirects {
        tracked: !alive.is_empty(),
        none: alive.iter().any(|policy| policy.none),
        follows: alive.iter().any(|policy| policy.follows),
    };
    Ok((client, redirects))
}

/// The last redirect that was followed.
#[derive(Debug)]
pub(crate) struct Followed {
    /// The URL it led to.
    url: Url,
    /// The time of the redirect.
    pub(crate) at: Instant,
}

impl Followed {
    /// The URL it led to.
    pub(crate) const fn url(&self) -> &Url {
        &self.url
    }

    /// The URL that was requested last, given the result. `None` if the last redirect was not requested, because
    /// reqwest refused to follow it.
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

/// Detects the redirects that are followed while one attempt is polled.
#[derive(Default, Debug)]
pub(crate) struct RedirectWatch {
    followed: Option<Box<Followed>>,
    /// `None` if nothing is sent.
    current_request: Option<CurrentRequest>,
}

impl RedirectWatch {
    /// Creates a watch for an attempt that starts with this request.
    #[inline]
    pub(crate) const fn over(current_request: Option<CurrentRequest>) -> Self {
        Self {
            followed: None,
            current_request,
        }
    }

    /// Polls the attempt, and stores the redirects of that poll. Also returns whether there were any.
    #[inline]
    pub(crate) fn poll<T>(&mut self, poll: impl FnOnce() -> T) -> (T, bool) {
        /// Restores the request of the enclosing attempt, even if this one panics.
        struct RestoreOuter(Option<CurrentRequest>);
        impl Drop for RestoreOuter {
            fn drop(&mut self) {
                CURRENT_REQUEST.set(self.0);
            }
        }
        let before = REDIRECTS.get();
        let outer = RestoreOuter(CURRENT_REQUEST.replace(self.current_request));
        let polled = poll();
        self.current_request = CURRENT_REQUEST.get();
        drop(outer);
        let redirected = REDIRECTS.get() != before;
        if redirected {
            self.take_redirect(before);
        }
        (polled, redirected)
    }

    #[cold]
    fn take_redirect(&mut self, before: u32) {
        // An enclosing attempt must not count this redirect as its own.
        REDIRECTS.set(before);
        if let Some(followed) = LATEST_REDIRECT.take() {
            self.followed = Some(followed);
        }
    }

    /// Replaces the URL in the error of an attempt by the one that was requested last. reqwest names the first one,
    /// which has responded.
    pub(crate) fn name_last_url(&self, error: &mut reqwest::Error) {
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
