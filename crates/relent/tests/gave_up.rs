//! What a function that returns another error makes of a [`GaveUp`], and what its chain prints.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::error::Error;
use std::fmt;
use std::future::pending;
use std::io;
use std::time::Duration;

use anyhow::Context as _;
use relent::error::{DynError, NoLastError};
use relent::policy::HedgeConfig;
use relent::{Backoff, GaveUp, NamedPolicy, Policy, StopReason, blocking, retry, retry_mut};

/// What the innermost error says.
const ROOT: &str = "connection refused";

/// An error of a user: its text does not contain that of its source.
#[derive(Debug)]
enum MyError {
    Fetch(io::Error),
    GaveUp(NoLastError),
}

impl fmt::Display for MyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch(_) => f.write_str("cannot fetch"),
            Self::GaveUp(gave_up) => gave_up.fmt(f),
        }
    }
}

impl Error for MyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Fetch(error) => Some(error),
            Self::GaveUp(gave_up) => gave_up.source(),
        }
    }
}

impl From<NoLastError> for MyError {
    fn from(gave_up: NoLastError) -> Self {
        Self::GaveUp(gave_up)
    }
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, ROOT)
}

/// Fails with its own error type, as `fetch` of a user would.
async fn fetch() -> Result<u32, MyError> {
    Err(MyError::Fetch(refused()))
}

/// One retry, at once.
static ONCE_MORE: Policy = Policy::builder(Backoff::None).max_retries(1).build_const();

/// One attempt, which is cut off after a second.
static CUT_OFF: Policy = Policy::builder(Backoff::None)
    .max_retries(0)
    .attempt_timeout(Duration::from_secs(1))
    .build_const();

/// An error and its sources, one line each.
fn chain(error: &dyn Error) -> Vec<String> {
    let mut lines = vec![error.to_string()];
    let mut source = error.source();
    while let Some(error) = source {
        lines.push(error.to_string());
        source = error.source();
    }
    lines
}

/// No line of the chain is part of another, and what happened is in there.
#[track_caller]
fn prints_each_cause_once(error: &dyn Error) {
    let lines = chain(error);
    for (index, line) in lines.iter().enumerate() {
        let above = &lines[..index];
        assert!(above.iter().all(|above| !above.contains(line)), "{lines:?}");
    }
    let whole = lines.join(": ");
    assert_eq!(whole.matches(ROOT).count(), 1, "{whole}");
}

#[tokio::test(start_paused = true)]
async fn a_chain_prints_each_cause_once() {
    let mine = retry(&ONCE_MORE, fetch).await.unwrap_err();
    assert!(
        mine.to_string().ends_with("(last error: cannot fetch)"),
        "{mine}"
    );
    prints_each_cause_once(&mine);

    let plain = retry(&ONCE_MORE, async || Err::<(), _>(refused()));
    let plain = plain.await.unwrap_err();
    assert!(plain.to_string().contains(ROOT), "{plain}");
    prints_each_cause_once(&plain);
    prints_each_cause_once(&io::Error::from(plain));

    let nested = retry(&ONCE_MORE, async || retry(&ONCE_MORE, fetch).await);
    prints_each_cause_once(&nested.await.unwrap_err());

    let text = retry(&ONCE_MORE, async || Err::<(), _>(ROOT)).await;
    prints_each_cause_once(&text.map_err(GaveUp::into_dyn).unwrap_err());

    let context = async || -> anyhow::Result<()> { Err(refused()).context("cannot connect") };
    let context = retry(&ONCE_MORE, context).await.unwrap_err();
    // As `anyhow` does it: `{:#}` shows the causes too.
    assert!(
        format!("{context:#}").ends_with("(last error: cannot connect: connection refused)"),
        "{context:#}"
    );
    let context = context.into_dyn();
    assert!(
        context
            .to_string()
            .ends_with("(last error: cannot connect)"),
        "{context}"
    );
    prints_each_cause_once(&context);
}

#[test]
fn a_policy_file_that_cannot_be_read_says_so_once() {
    let error = NamedPolicy::load("./src/").unwrap_err();
    let lines = chain(&error);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(error.to_string().contains("cannot be read: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn anyhow_takes_a_give_up_by_the_question_mark() {
    async fn own() -> anyhow::Result<u32> {
        Ok(retry(&ONCE_MORE, fetch).await?)
    }
    async fn context() -> anyhow::Result<u32> {
        let order = async || -> anyhow::Result<u32> { fetch().await.context("cannot order") };
        let order = retry(&ONCE_MORE, order).await.map_err(GaveUp::into_dyn)?;
        Ok(order)
    }
    async fn last() -> anyhow::Result<u32> {
        let order = async || -> anyhow::Result<u32> { fetch().await.context("cannot order") };
        retry(&ONCE_MORE, order).or_last_error().await
    }
    let own = own().await.unwrap_err();
    let whole = format!("{own:#}");
    assert!(whole.starts_with("gave up after 2 attempts in "), "{whole}");
    assert!(
        whole.ends_with("(last error: cannot fetch): connection refused"),
        "{whole}"
    );
    prints_each_cause_once(own.as_ref());
    let gave_up: &GaveUp<MyError> = own.downcast_ref().unwrap();
    assert!(matches!(gave_up.error(), Some(MyError::Fetch(_))));

    let context = context().await.unwrap_err();
    prints_each_cause_once(context.as_ref());
    let gave_up: &GaveUp<DynError> = context.downcast_ref().unwrap();
    assert_eq!(gave_up.attempts(), 2);

    let last = last().await.unwrap_err();
    assert_eq!(
        format!("{last:#}"),
        "cannot order: cannot fetch: connection refused"
    );
}

#[tokio::test(start_paused = true)]
async fn a_boxed_error_takes_a_give_up_by_the_question_mark() {
    type Boxed = Box<dyn Error + Send + Sync>;
    async fn own() -> Result<u32, Box<dyn Error>> {
        Ok(retry(&ONCE_MORE, fetch).await?)
    }
    async fn boxed() -> Result<u32, Boxed> {
        let order = async || -> Result<u32, Boxed> { Ok(fetch().await?) };
        Ok(retry(&ONCE_MORE, order).await.map_err(GaveUp::into_dyn)?)
    }
    async fn last() -> Result<u32, Box<dyn Error>> {
        let order = async || -> Result<u32, Box<dyn Error>> { Ok(fetch().await?) };
        retry(&ONCE_MORE, order).or_last_error().await
    }
    prints_each_cause_once(&*own().await.unwrap_err());
    prints_each_cause_once(&*boxed().await.unwrap_err());
    assert_eq!(last().await.unwrap_err().to_string(), "cannot fetch");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_was_boxed_is_still_there() {
    let order = async || -> anyhow::Result<u32> { fetch().await.context("cannot order") };
    let gave_up = retry(&ONCE_MORE, order).await.unwrap_err().into_dyn();
    let last = gave_up.into_error().unwrap();
    assert_eq!(last.to_string(), "cannot order");
    assert!(last.get_ref().source().is_some());
    let text = retry(&ONCE_MORE, async || {
        Err::<(), Box<dyn Error + Send + Sync>>(refused().into())
    });
    let last = text.await.unwrap_err().into_dyn().into_error().unwrap();
    assert!(last.get_ref().is::<io::Error>());
    assert!(last.into_inner().is::<io::Error>());
}

#[tokio::test(start_paused = true)]
async fn a_function_can_return_the_error_type_of_its_operation() {
    let awaited = retry(&ONCE_MORE, fetch).or_last_error().await;
    assert!(matches!(awaited, Err(MyError::Fetch(_))), "{awaited:?}");
    let hedge = HedgeConfig::after(Duration::from_secs(1));
    let hedging = ONCE_MORE
        .clone()
        .into_builder()
        .hedge(hedge)
        .build()
        .unwrap();
    let hedged = retry(&hedging, fetch).or_last_error().await;
    assert!(matches!(hedged, Err(MyError::Fetch(_))), "{hedged:?}");
    let lent = retry_mut(&ONCE_MORE, async |_| fetch().await).run().await;
    let lent = lent.map_err(GaveUp::into_last);
    assert!(matches!(lent, Err(MyError::Fetch(_))), "{lent:?}");
    let blocked = blocking::retry(&ONCE_MORE, || Err::<(), _>(MyError::Fetch(refused()))).run();
    let blocked = blocked.map_err(GaveUp::into_last);
    assert!(matches!(blocked, Err(MyError::Fetch(_))), "{blocked:?}");
    let spawned = tokio::spawn(async { retry(Policy::STANDARD, fetch).or_last_error().await });
    assert!(spawned.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn without_a_last_error_the_error_type_says_what_takes_its_place() {
    let mine = retry(&CUT_OFF, pending::<Result<(), MyError>>);
    let Err(MyError::GaveUp(gave_up)) = mine.or_last_error().await else {
        unreachable!("no attempt has ended");
    };
    assert_eq!(gave_up.attempts(), 1);
    assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);

    let text = retry(&CUT_OFF, pending::<Result<(), String>>);
    let text = text.or_last_error().await.unwrap_err();
    assert_eq!(
        text,
        "gave up after 1 attempt in 1s: the retries are used up"
    );

    let other = retry(&CUT_OFF, pending::<Result<(), fmt::Error>>).await;
    let other = other.map_err(|gave_up| gave_up.into_last_or_else(|_| fmt::Error));
    assert_eq!(other, Err(fmt::Error));

    let any = retry(&CUT_OFF, pending::<anyhow::Result<()>>);
    assert!(any.or_last_error().await.unwrap_err().is::<NoLastError>());
}

#[tokio::test(start_paused = true)]
async fn an_io_error_keeps_its_kind() {
    async fn read() -> io::Result<u32> {
        Ok(retry(&ONCE_MORE, async || Err(refused())).await?)
    }
    let error = read().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(
        error.to_string().starts_with("gave up after 2 attempts"),
        "{error}"
    );
    let inner = error.into_inner().unwrap();
    assert!(inner.is::<GaveUp<io::Error>>());

    let deadline = Policy::builder(Backoff::None).deadline(Duration::from_secs(1));
    let deadline = deadline.build().unwrap();
    let late = retry(&deadline, pending::<io::Result<()>>).await;
    let late = io::Error::from(late.unwrap_err());
    assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    let late = retry(&deadline, pending::<io::Result<()>>).or_last_error();
    assert_eq!(late.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
}
