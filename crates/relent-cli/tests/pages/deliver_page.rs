//! Tests of the page of `relent deliver serve`, in a browser.

use std::path::Path;

use serde_json::{Value, json};

use crate::browser::{self, Browser};
use crate::deliver_support::{INSIDE, Receiver, Server, until};

const NEW_KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OLD_KEY: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

/// Creates endpoints, and messages in each state.
fn filled(server: &Server, receiver: &Receiver) -> Vec<String> {
    // A running attempt cannot be cancelled, so messages to cancel must not be sent again meanwhile.
    let rarely = "max_retries = 10\nretry_on = [\"5xx\"]\nbackoff.constant = { delay = \"1h\" }\n";
    for (name, spec) in [
        (
            "shop",
            json!({ "url": receiver.url("/ok"), "secrets": [NEW_KEY, OLD_KEY] }),
        ),
        (
            "warehouse",
            json!({ "url": receiver.url("/bad"), "policy": rarely }),
        ),
        ("old-shop", json!({ "url": receiver.url("/gone") })),
    ] {
        let path = format!("/v1/endpoints/{name}?tenant=acme");
        server.ask("PUT", &path, &spec.to_string());
    }
    let silent = json!({ "url": receiver.url("/ok"), "policy": "wechat-pay", "acknowledgement": "code-success" });
    server.ask(
        "PUT",
        "/v1/endpoints/a-name-that-is-as-long-as-somebody-makes-it-without-a-space",
        &silent.to_string(),
    );
    let send = |endpoint: &str, tenant: &str, event: &str| {
        let message = json!({
            "tenant": tenant, "endpoint": endpoint, "event": event, "topic": "payment.settled", "payload": { "order": 17 },
        });
        let (_, sent) = server.ask("POST", "/v1/messages", &message.to_string());
        sent["id"].as_str().unwrap().to_owned()
    };
    let ids = vec![
        send("shop", "acme", "order-17-paid"),
        send("warehouse", "acme", "order-18-<script>alert(1)</script>"),
        send("old-shop", "acme", "order-19-paid"),
        send(
            "a-name-that-is-as-long-as-somebody-makes-it-without-a-space",
            "",
            "order-20-paid",
        ),
    ];
    server.message_is(&ids[0], "delivered");
    server.message_is(&ids[2], "dead");
    for id in [&ids[1], &ids[3]] {
        until("an attempt failed", || {
            let (_, shown) = server.ask("GET", &format!("/v1/messages/{id}"), "");
            (shown["message"]["last_error"] != "").then_some(())
        });
    }
    // An endpoint that is down, with more messages than a list shows, all later than the others.
    let policy =
        "max_retries = 1000\nretry_on = [\"5xx\"]\nbackoff.constant = { delay = \"100ms\" }\n";
    let down = json!({ "url": receiver.url("/bad"), "policy": policy }).to_string();
    server.ask("PUT", "/v1/endpoints/depot", &down);
    let many: Vec<_> = (0..150)
        .map(
            |event| json!({ "endpoint": "depot", "event": format!("stock-{event}"), "payload": 1 }),
        )
        .collect();
    server.ask("POST", "/v1/messages", &json!(many).to_string());
    until("the depot is parked", || {
        let (_, shown) = server.ask("GET", "/v1/endpoints/depot", "");
        (shown["held"]["hold_reason"] == "down").then_some(())
    });
    ids
}

/// Loads the page until it shows the reason why the depot waits. While a probe runs, nothing holds the depot.
fn load_while_held(browser: &mut Browser, page: &str, width: u32, dark: bool) -> String {
    until("the page shows that the depot is held", || {
        browser.load(page, width, dark);
        let seen = text(browser);
        seen.contains("is probed now and then").then_some(seen)
    })
}

fn text(browser: &mut Browser) -> String {
    browser
        .value("document.body.innerText")
        .as_str()
        .unwrap()
        .to_owned()
}

/// Checks the open page: it has no errors, requests nothing from other sites, and no element is wider than the
/// window, too small to press, or without a name.
fn looked_at(browser: &mut Browser, server: &Server, name: &str) {
    assert_eq!(browser.complaints(), Vec::<&Value>::new(), "{name}");
    let own = format!("http://{}/", server.address);
    // The icons of a time field belong to the browser.
    assert!(
        browser
            .requests()
            .iter()
            .all(|url| url.starts_with(&own) || url.starts_with("data:")),
        "{name}"
    );
    let wide = browser
        .value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(wide, 0, "{name} is wider than its window");
    let nameless = browser.value(
        "[...document.querySelectorAll('input:not([type=hidden],[hidden]),select')].filter(e => !e.labels.length).length",
    );
    assert_eq!(nameless, 0, "{name}");
    // Text and background have enough contrast (WCAG 2.2, 1.4.3).
    let pale = browser.value(CONTRAST);
    assert_eq!(pale, json!([]), "{name}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deliver_page");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{name}.png")), browser.picture()).unwrap();
}

const CONTRAST: &str = r"
(() => {
  const part = text => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = part(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  return [...document.body.querySelectorAll('*')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .map(e => { const a = light(part(getComputedStyle(e).color)), b = light(behind(e));
      return [e.innerText, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]; })
    .filter(([, ratio]) => ratio < 4.5);
})()";

#[test]
fn the_page_shows_stuck_messages_with_reasons_and_actions() {
    let Some(mut browser) = browser::open() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let options = ["--lease", "2s", "--content-token-file", "content.token"];
    let server = Server::start_with(folder.path(), &[&INSIDE[..], &options].concat());
    let receiver = Receiver::start();
    let page = |path: &str| format!("http://{}{path}", server.address);

    // Without a token, the page shows a form and no numbers.
    browser.load(&page("/messages"), 1200, false);
    assert!(text(&mut browser).contains("Sign in"));
    looked_at(&mut browser, &server, "sign-in");
    let sign_in = |browser: &mut Browser, token: &str| {
        browser.go(&format!(
            "document.querySelector('#token').value = '{token}'; document.querySelector('main button').click()"
        ));
    };
    sign_in(&mut browser, "relent_something_else");
    assert!(text(&mut browser).contains("not the token"));
    sign_in(&mut browser, &server.token);
    assert!(
        text(&mut browser).contains("Nothing needs you"),
        "{}",
        text(&mut browser)
    );
    assert_eq!(
        browser.value("document.cookie"),
        "",
        "no script reads the cookie"
    );
    looked_at(&mut browser, &server, "empty");

    let ids = filled(&server, &receiver);
    for (width, dark) in [(1200, false), (1200, true), (360, false), (360, true)] {
        let look = format!("{width}-{}", if dark { "dark" } else { "light" });
        let seen = load_while_held(&mut browser, &page("/"), width, dark);
        for part in [
            "1 dead letter and 1 disabled endpoint need somebody",
            "410",
            "status 500",
            "acme / old-shop",
            "the endpoint is down, and is probed now and then",
            "order-20-paid",
            "<script>alert(1)</script>",
        ] {
            assert!(seen.contains(part), "{part} in {seen}");
        }
        assert!(
            seen.matches("stock-").count() <= 1,
            "one of each endpoint: {seen}"
        );
        looked_at(&mut browser, &server, &format!("overview-{look}"));
        browser.load(&page("/messages"), width, dark);
        looked_at(&mut browser, &server, &format!("messages-{look}"));
        browser.load(&page(&format!("/messages/{}", ids[1])), width, dark);
        let seen = text(&mut browser);
        assert!(
            seen.contains("status 500") && seen.contains("no <b>such</b>"),
            "{seen}"
        );
        looked_at(&mut browser, &server, &format!("message-{look}"));
        let seen = load_while_held(&mut browser, &page("/endpoints/depot"), width, dark);
        assert!(!seen.contains("another process"), "{seen}");
        looked_at(&mut browser, &server, &format!("depot-{look}"));
        browser.load(&page("/endpoints/old%2Dshop?tenant=acme"), width, dark);
        looked_at(&mut browser, &server, &format!("endpoint-{look}"));
    }

    // The buttons.
    let press = |browser: &mut Browser, act: &str| {
        browser.go(&format!(
            "document.querySelector('input[value={act}]').form.querySelector('button').click()"
        ));
    };
    press(&mut browser, "enable");
    assert!(
        !text(&mut browser).contains("disabled"),
        "{}",
        text(&mut browser)
    );
    press(&mut browser, "replay");
    assert!(text(&mut browser).contains("1 message will be sent again"));
    server.message_is(&ids[2], "dead");
    browser.load(&page(&format!("/messages/{}", ids[1])), 1200, false);
    press(&mut browser, "cancel");
    let seen = text(&mut browser);
    assert!(seen.contains("It is cancelled"), "{seen}");
    press(&mut browser, "resend");
    assert!(text(&mut browser).contains("1 message will be sent again"));
    // The form preselects the oldest key, and removes the last one only with the box ticked.
    browser.load(&page("/endpoints/shop?tenant=acme"), 360, false);
    looked_at(&mut browser, &server, "keys");
    press(&mut browser, "remove-key");
    looked_at(&mut browser, &server, "last-key");
    let left = || {
        let (_, shop) = server.ask("GET", "/v1/endpoints/shop?tenant=acme", "");
        shop["endpoint"]["secrets"].clone()
    };
    assert_eq!(left(), json!(["encrypted"]));
    let may = "document.querySelector('#unsigned').form.checkValidity()";
    assert_eq!(browser.value(may), false);
    browser.value("document.querySelector('#unsigned').checked = true");
    press(&mut browser, "remove-key");
    assert!(text(&mut browser).contains("attempts are not signed"));
    assert_eq!(left(), json!([]));
    browser.load(&page("/endpoints/shop?tenant=acme"), 1200, false);
    browser.value("document.querySelector('#reason').value = 'moves until noon'");
    press(&mut browser, "disable");
    assert!(text(&mut browser).contains("moves until noon"));
    assert_eq!(browser.complaints(), Vec::<&Value>::new());

    // The messages of one endpoint.
    browser.load(&page("/endpoints/old%2Dshop?tenant=acme"), 1200, false);
    browser.go("document.querySelector('.facts a').click()");
    let seen = text(&mut browser);
    assert!(
        seen.contains("Messages to acme / old-shop") && seen.contains("order-19-paid"),
        "{seen}"
    );
    assert!(!seen.contains("stock-"), "{seen}");

    // Endpoints that need attention come first.
    for spare in 0..20 {
        let spec = json!({ "url": receiver.url("/ok") }).to_string();
        server.ask("PUT", &format!("/v1/endpoints/spare-{spare}"), &spec);
    }
    let seen = load_while_held(&mut browser, &page("/"), 360, true);
    let place = |what: &str| seen.find(what).expect(what);
    assert!(place("moves until noon") < place("is probed now and then"));
    assert!(place("is probed now and then") < place("spare-"));
    assert!(seen.contains("\n5 more\n"), "{seen}");
    looked_at(&mut browser, &server, "many");

    // The form that registers another endpoint, and its request.
    browser
        .value("document.querySelector('section[aria-labelledby=register] details').open = true");
    looked_at(&mut browser, &server, "register-360");
    browser.load(&page("/"), 1200, false);
    browser
        .value("document.querySelector('section[aria-labelledby=register] details').open = true");
    looked_at(&mut browser, &server, "register-1200");
    let url = receiver.url("/ok");
    browser.value(&format!(
        "document.querySelector('#name').value = 'by form'; document.querySelector('#url').value = '{url}';\
         document.querySelector('#topics').value = 'order.*'"
    ));
    press(&mut browser, "register");
    let seen = text(&mut browser);
    assert!(
        seen.contains("by form") && seen.contains("order.*"),
        "{seen}"
    );
    press(&mut browser, "test");
    assert!(
        text(&mut browser).contains("relent.test"),
        "{}",
        text(&mut browser)
    );

    // Several messages of a list.
    browser.load(&page("/messages?endpoint=depot&state=pending"), 1200, false);
    browser.value("document.querySelectorAll('input[name=id]').forEach((box, at) => { box.checked = at < 3; })");
    browser.go("document.querySelector('button[value=cancelled]').click()");
    let seen = text(&mut browser);
    assert!(seen.contains("3 messages are cancelled."), "{seen}");
    assert!(
        seen.contains("Messages to depot"),
        "it is the same list: {seen}"
    );

    // Pages that do not exist.
    browser.load(&page("/messages/msg_no"), 1200, false);
    assert!(text(&mut browser).contains("no such message"));
    browser.go("document.querySelector('header form button').click()");
    assert!(text(&mut browser).contains("Sign in"), "signed out");
    browser.load(&page("/"), 1200, false);
    assert!(text(&mut browser).contains("Sign in"), "signed out");

    // A session with the content token.
    let token = std::fs::read_to_string(folder.path().join("content.token")).unwrap();
    sign_in(&mut browser, token.trim());
    browser.load(&page(&format!("/messages/{}", ids[1])), 1200, false);
    browser.go(
        "[...document.querySelectorAll('a')].find(a => a.innerText.startsWith('Payload')).click()",
    );
    let seen = text(&mut browser);
    assert!(
        seen.contains(r#"{"order":17}"#) && seen.contains("webhook-id: msg_"),
        "{seen}"
    );
    for width in [1200, 360] {
        browser.load(
            &page(&format!("/messages/{}/content", ids[1])),
            width,
            width == 360,
        );
        looked_at(&mut browser, &server, &format!("content-{width}"));
    }
}

/// No other site can press a button or frame a page: neither the cookie nor a form alone is sufficient.
#[test]
fn a_form_from_another_site_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (server, receiver) = (Server::start(folder.path()), Receiver::start());
    let ids = filled(&server, &receiver);
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let (status, head, _) = server.raw("POST", "/login", form, &format!("token={}", server.token));
    assert_eq!(status, 303);
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    assert!(
        !cookie.contains(&server.token),
        "the cookie is not the token"
    );
    let signed_in = format!("{form}cookie: {}\r\n", cookie.split(';').next().unwrap());

    let (_, head, page) = server.raw("GET", &format!("/messages/{}", ids[0]), &signed_in, "");
    for part in [
        "default-src 'none'",
        "frame-ancestors 'none'",
        "no-store",
        "nosniff",
    ] {
        assert!(head.contains(part), "{part} in {head}");
    }
    let (_, token) = page.split_once("name=\"form_token\" value=\"").unwrap();
    let token = token.split('"').next().unwrap();
    let act = format!("act=resend&id={}", ids[0]);
    for (fields, body, wanted) in [
        (&signed_in, act.clone(), 422),
        (&signed_in, format!("{act}&form_token=relent_x"), 403),
        // Without the cookie there is only the form to sign in.
        (&form.to_owned(), format!("{act}&form_token={token}"), 303),
        (&signed_in, format!("act=explode&form_token={token}"), 422),
    ] {
        let (status, _, _) = server.raw("POST", "/do", fields, &body);
        assert_eq!(status, wanted, "{body}");
        server.message_is(&ids[0], "delivered");
        assert_eq!(
            receiver
                .seen()
                .iter()
                .filter(|seen| seen.header("webhook-id") == Some(&ids[0]))
                .count(),
            1
        );
    }
    let (status, head, _) = server.raw(
        "POST",
        "/do",
        &signed_in,
        &format!("{act}&form_token={token}"),
    );
    assert!(status == 303 && head.contains("resent=1"), "{head}");
    // The cookie gives no access to the API.
    assert_eq!(server.raw("GET", "/v1/summary", &signed_in, "").0, 401);
}
