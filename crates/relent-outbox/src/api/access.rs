//! Authentication of requests by token or cookie.

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HeaderMap, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use tokio::time::timeout;

use super::limits::REQUEST_TIMEOUT;
use super::response::refuse;
use super::sessions::Contents;
use super::state::{Api, Shared};
use crate::store::Store;

/// The name of the page's cookie.
pub(super) const SESSION: &str = "relent_session";
/// Content security policy: no external resources, scripts or framing, and forms only to this site.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

impl<S> Api<S> {
    /// Whether a client with this token may see contents; `None` if the token is invalid.
    pub(super) fn contents_by(&self, token: &str) -> Option<Contents> {
        // Always compare with both tokens, so that timing reveals nothing.
        let may = self.content_token.as_ref().is_some_and(|own| own.is(token));
        (self.token.is(token) || may).then_some(Contents(may))
    }
}

/// Passes authenticated requests on, with a time limit.
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
        () => run(&api, program, request, next).await,
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    response
}

/// Runs the handler. The body of a program's request needs memory, which all of them share; that of a form is short.
async fn run<S>(api: &Api<S>, program: bool, request: Request, next: Next) -> Response {
    let limit = REQUEST_TIMEOUT;
    let length = match *request.method() {
        // No handler reads its body.
        Method::GET => Some(0),
        _ => request.body().size_hint().upper(),
    };
    let late = |text| refuse(StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    let _memory = match program {
        true => match timeout(limit, api.bodies.reserve(length)).await {
            Ok(memory) => memory,
            Err(_) => {
                return late(format!(
                    "other requests held the memory for bodies for {} s, and nothing was done: send it again",
                    limit.as_secs()
                ));
            }
        },
        false => None,
    };
    timeout(limit, next.run(request)).await.unwrap_or_else(|_| {
        late(format!(
            "it took longer than {} s, and it is unknown whether it was done: send it again",
            limit.as_secs()
        ))
    })
}

/// The token of a program. The scheme is case-insensitive (RFC 9110 §11.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_start_matches(' '))
}

/// The session cookie of the page.
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
