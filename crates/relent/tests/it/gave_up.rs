//! Conversions of a [`GaveUp`] to other error types, and its error chain.

use std::error::Error;
use std::fmt;
use std::future::pending;
use std::io;
use std::time::Duration;

use anyhow::Context as _;
use relent::error::{DynError, NoLastError};
use relent::failure::Cause;
use relent::policy::{HedgeConfig, Pattern, PolicyBuilder, Rule};
use relent::{
    Backoff, Failure, GaveUp, NamedPolicy, Policy, StopReason, blocking, retry, retry_mut,
};

/// The text of the innermost error.
const ROOT: &str = "connection refused";

/// A user's error type, whose text does not contain that of its source.
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

/// Fails with the user's error type.
async fn fetch() -> Result<u32, MyError> {
    Err(MyError::Fetch(refused()))
}

/// One immediate retry.
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

/// Checks that no line of the chain repeats another, and that the root cause appears once.
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
    // As in `anyhow`: `{:#}` prints the causes, too.
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
fn an_unreadable_policy_file_is_reported_once() {
    let error = NamedPolicy::load("./src/").unwrap_err();
    let lines = chain(&error);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(error.to_string().contains("cannot be read: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_question_mark_converts_gave_up_to_anyhow() {
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
async fn the_question_mark_converts_gave_up_to_a_boxed_error() {
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
async fn a_boxed_error_keeps_the_inner_error() {
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
async fn without_a_last_error_the_error_type_provides_a_replacement() {
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
        "gave up after 1 attempt in 1s: the retries are used up (the attempt timed out after 1s)"
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

/// A user's error type that is a plain enum.
#[derive(Debug, PartialEq)]
enum PlainEnum {
    Refused,
    NoAnswer,
}

#[tokio::test(start_paused = true)]
async fn a_plain_enum_error_needs_one_more_method() {
    async fn order(fetch: impl AsyncFn() -> Result<u32, PlainEnum>) -> Result<u32, PlainEnum> {
        let order = retry(&CUT_OFF, || fetch())
            .or_last_error_else(|_| PlainEnum::NoAnswer)
            .await?;
        Ok(order)
    }
    assert_eq!(order(async || Ok(1)).await, Ok(1));
    assert_eq!(
        order(async || Err(PlainEnum::Refused)).await,
        Err(PlainEnum::Refused)
    );
    assert_eq!(
        order(pending::<Result<u32, PlainEnum>>).await,
        Err(PlainEnum::NoAnswer)
    );
    let blocked = blocking::retry(&ONCE_MORE, || Err::<(), _>(PlainEnum::Refused)).run();
    let blocked = blocked.map_err(|gave_up| gave_up.into_last_or_else(|_| PlainEnum::NoAnswer));
    assert_eq!(blocked, Err(PlainEnum::Refused));
}

/// A user's error type that wraps one of another crate, as with `#[from]` of `thiserror`.
#[derive(Debug)]
enum Around {
    Http(GaveUp<reqwest::Error>),
}

impl From<GaveUp<reqwest::Error>> for Around {
    fn from(gave_up: GaveUp<reqwest::Error>) -> Self {
        Self::Http(gave_up)
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_another_crate_needs_no_implementation() {
    async fn page() -> Result<String, reqwest::Error> {
        let page = reqwest::Client::new().get("no address").send().await?;
        page.text().await
    }
    async fn by_anyhow() -> anyhow::Result<String> {
        Ok(retry(&ONCE_MORE, page).await?)
    }
    async fn by_box() -> Result<String, Box<dyn Error>> {
        Ok(retry(&ONCE_MORE, page).await?)
    }
    async fn by_itself() -> Result<String, GaveUp<reqwest::Error>> {
        retry(&ONCE_MORE, page).await
    }
    async fn by_variant() -> Result<String, Around> {
        Ok(retry(&ONCE_MORE, page).await?)
    }
    let any = by_anyhow().await.unwrap_err();
    let gave_up: &GaveUp<reqwest::Error> = any.downcast_ref().unwrap();
    assert!(gave_up.error().unwrap().is_builder());
    // The source is that of the last error.
    assert!(any.source().is_some());
    assert!(by_box().await.unwrap_err().source().is_some());
    assert_eq!(by_itself().await.unwrap_err().attempts(), 2);
    let Around::Http(gave_up) = by_variant().await.unwrap_err();
    assert_eq!(gave_up.attempts(), 2);

    async fn row(limits: &Policy) -> Result<u32, sqlx::Error> {
        let query = async || match limits.attempt_timeout() {
            Some(_) => pending().await,
            None => Err::<u32, _>(sqlx::Error::RowNotFound),
        };
        let row = retry(limits, query);
        row.or_last_error_else(|gave_up| sqlx::Error::Io(gave_up.into()))
            .await
    }
    assert!(matches!(
        row(&ONCE_MORE).await,
        Err(sqlx::Error::RowNotFound)
    ));
    assert!(matches!(row(&CUT_OFF).await, Err(sqlx::Error::Io(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_spawned_as_a_future() {
    let answer = tokio::spawn(retry(Policy::STANDARD, async || Ok::<_, io::Error>(1)));
    assert_eq!(answer.await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_text_says_why_each_attempt_failed() {
    let policy = ONCE_MORE
        .clone()
        .into_builder()
        .attempt_timeout(Duration::from_secs(1));
    let policy = policy.build().unwrap();
    let silent = retry(&policy, pending::<Result<(), MyError>>)
        .traced()
        .await;
    assert_eq!(
        silent.unwrap_err().to_string(),
        "gave up after 2 attempts in 2s: the retries are used up (each attempt timed out after 1s)\n\
         attempt 1: timed out after 1s; next in 0s\n\
         attempt 2: timed out after 1s; gave up: the retries are used up"
    );

    let mut attempts = 0;
    let mixed = retry(&policy, || {
        attempts += 1;
        let first = attempts == 1;
        async move {
            match first {
                true => pending().await,
                false => Err::<(), _>(refused()),
            }
        }
    });
    let mixed = mixed.await.unwrap_err();
    assert_eq!(
        mixed.to_string(),
        "gave up after 2 attempts in 1s: the retries are used up (last error: connection refused)"
    );
    assert_eq!(mixed.summary().timed_out, None);

    let answer = async || Ok::<_, MyError>(7);
    let (answer, summary) = retry(&policy, answer).traced().with_summary().await;
    assert_eq!(answer.unwrap(), 7);
    assert_eq!(
        summary.to_string(),
        "succeeded after 1 attempt in 0s\nattempt 1: succeeded after 0s"
    );
}

/// Attempts that the deadline cuts off sooner, that different rules limit, or that end earlier by a limit of their own.
#[tokio::test(start_paused = true)]
async fn the_text_names_an_attempt_timeout_only_if_it_ended_every_attempt() {
    const SECOND: Duration = Duration::from_secs(1);
    let once_more = || ONCE_MORE.clone().into_builder();
    let timed_out = |policy: PolicyBuilder| async move {
        let policy = policy.build().unwrap();
        let silent = retry(&policy, pending::<Result<(), MyError>>);
        silent.await.unwrap_err().summary().timed_out
    };
    let patient = Rule {
        attempt_timeout: Some(5 * SECOND),
        ..Rule::on([Pattern::Timeout])
    };
    let limited = || once_more().attempt_timeout(SECOND);
    assert_eq!(timed_out(limited()).await, Some(SECOND));
    let cut_off = limited().deadline(SECOND + SECOND / 2);
    assert_eq!(timed_out(cut_off).await, None, "one ended after 500 ms");
    let longer = limited().rule(patient.clone());
    assert_eq!(
        timed_out(longer).await,
        None,
        "one ended after 1 s, one after 5 s"
    );
    let single = limited().rule(patient).max_retries(0);
    assert_eq!(
        timed_out(single).await,
        Some(SECOND),
        "the rule limits only the next"
    );

    let policy = limited().build().unwrap();
    let own_limit = retry(&policy, async || {
        tokio::time::sleep(SECOND / 5).await;
        Err::<(), _>(refused())
    });
    let own_limit = own_limit.classify(|_| Failure::ambiguous().cause(Cause::Timeout));
    assert_eq!(own_limit.await.unwrap_err().summary().timed_out, None);
}
