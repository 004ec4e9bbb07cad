//! The options `--report` and `--plot`: records the runs for charts, and writes the files.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use relent::Policy;
use relent_sim::report::{self, PolicyRuns, Section, without_jitter};
use relent_sim::study::{RunResult, record_all};
use relent_sim::{Arrivals, Recording, Scenario, TooManyEvents};

use super::input::NamedItem;
use super::ranked::OFF;
use crate::exit_status::ExitError;
use crate::output_file::{NewFile, OutputFile};

type Recorded = Result<Recording, TooManyEvents>;

/// The requested files, and the recordings for them.
pub(crate) struct Charts<'a> {
    report: Option<Output>,
    plot: Option<Output>,
    /// All policies; `plain` has their variants without jitter, with the index of the policy.
    policies: Vec<&'a Policy>,
    plain: Vec<(usize, Policy)>,
    runs: usize,
    studies: Vec<Study<'a>>,
}

/// The results of one scenario.
struct Study<'a> {
    scenario: &'a NamedItem<Scenario>,
    results: Vec<Vec<RunResult>>,
    /// The runs of `off`, if it is none of the policies.
    off: Option<Vec<RunResult>>,
    recordings: Vec<Recorded>,
    plain: Vec<(usize, Recorded)>,
}

/// A requested file.
struct Output {
    option: &'static str,
    name: PathBuf,
    /// A special file (`/dev/null`, a pipe), which is opened once.
    special: Option<File>,
}

/// The prefix of the names of files that are not yet complete.
const PREFIX: &str = ".relent-simulate-";

/// Parses the name of a picture.
pub(crate) fn picture(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match has_ending(&path, "svg") {
        true => Ok(path),
        false => {
            Err("a picture is SVG: use a name that ends in .svg, or --report FILE.html".to_owned())
        }
    }
}

/// Parses the name of a page, which may not be that of a picture.
pub(crate) fn page(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match has_ending(&path, "png") {
        false => Ok(path),
        true => Err("a report is HTML: use a name that ends in .html; \
                 `relent simulate run --plot FILE.svg` draws a picture"
            .to_owned()),
    }
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(ending))
}

fn is_herd(scenario: &Scenario) -> bool {
    matches!(scenario.clients.arrivals, Arrivals::Herd { .. })
}

impl<'a> Charts<'a> {
    /// Checks that the requested files can be written, before the first run.
    ///
    /// # Errors
    /// A file cannot be written, or a picture of several scenarios is requested.
    pub(crate) fn open(
        report: Option<&Path>,
        plot: Option<&Path>,
        scenarios: &[NamedItem<Scenario>],
        policies: &'a [NamedItem<Policy>],
    ) -> Result<Self, ExitError> {
        if plot.is_some() && scenarios.len() != 1 {
            return Err(ExitError::usage(format!(
                "--plot draws one scenario, not {}: name one, or use --report",
                scenarios.len()
            )));
        }
        if plot.is_some() && plot == report {
            return Err(ExitError::usage(
                "--report and --plot name the same file: use two".to_owned(),
            ));
        }
        let report = Output::open("--report", report)?;
        let plot = Output::open("--plot", plot)?;
        let policies: Vec<&Policy> = policies.iter().map(|policy| &policy.value).collect();
        let plain = policies.iter().enumerate();
        let plain: Vec<(usize, Policy)> = plain
            .filter_map(|(index, policy)| Some((index, without_jitter(policy)?)))
            .collect();
        let runs = match report.is_some() || plot.is_some() {
            true => scenarios
                .iter()
                .map(|scenario| match is_herd(&scenario.value) {
                    true => policies.len() + plain.len(),
                    false => policies.len(),
                })
                .sum(),
            false => 0,
        };
        Ok(Self {
            report,
            plot,
            policies,
            plain,
            runs,
            studies: Vec::new(),
        })
    }

    /// The number of recorded runs, of all scenarios.
    pub(crate) const fn runs(&self) -> usize {
        self.runs
    }

    /// Records the runs of a scenario with this seed, if a file was requested.
    pub(crate) fn add(
        &mut self,
        scenario: &'a NamedItem<Scenario>,
        seed: u64,
        results: Vec<Vec<RunResult>>,
        off: Option<Vec<RunResult>>,
        threads: usize,
        on_run: &(dyn Fn() + Sync),
    ) {
        if self.runs == 0 {
            return;
        }
        let mut all = self.policies.clone();
        if is_herd(&scenario.value) {
            all.extend(self.plain.iter().map(|(_, policy)| policy));
        }
        let mut recordings = record_all(&scenario.value, &all, seed, threads, on_run);
        let plain = recordings.split_off(self.policies.len());
        let indices = self.plain.iter().map(|(index, _)| *index);
        self.studies.push(Study {
            scenario,
            results,
            off,
            recordings,
            plain: indices.zip(plain).collect(),
        });
    }

    /// Writes the requested files.
    ///
    /// # Errors
    /// A chart cannot be drawn, or a file cannot be written after all.
    pub(crate) fn write(
        self,
        policies: &[NamedItem<Policy>],
        seeds: &[u64],
        changes: &[(String, String)],
    ) -> Result<(), ExitError> {
        let sections = self.studies.iter().map(|study| {
            let mut entries: Vec<PolicyRuns<'_>> = policies
                .iter()
                .zip(&study.results)
                .zip(&study.recordings)
                .map(|((policy, runs), recording)| PolicyRuns {
                    name: &policy.name,
                    text: &policy.text,
                    runs,
                    recording: recording.as_ref().map_err(|error| *error),
                    without_jitter: None,
                })
                .collect();
            for (index, recording) in &study.plain {
                if let Some(entry) = entries.get_mut(*index) {
                    entry.without_jitter = Some(recording.as_ref().map_err(|error| *error));
                }
            }
            let own = policies.iter().position(|policy| policy.name == OFF);
            let own = own.and_then(|own| study.results.get(own));
            Section {
                off: study.off.as_ref().or(own).map(Vec::as_slice),
                name: &study.scenario.name,
                scenario: &study.scenario.value,
                text: &study.scenario.text,
                changes,
                seeds,
                entries,
            }
        });
        let sections: Vec<Section<'_>> = sections.collect();
        if let Some(output) = self.report {
            output.write(|| report::html(&sections).map(String::into_bytes))?;
        }
        if let (Some(output), Some(section)) = (self.plot, sections.first()) {
            output.write(|| report::svg(section).map(String::into_bytes))?;
        }
        Ok(())
    }
}

impl Output {
    fn open(option: &'static str, name: Option<&Path>) -> Result<Option<Self>, ExitError> {
        let Some(name) = name else { return Ok(None) };
        // A new file is created as a test and dropped: if it were kept during the runs, it would remain after an
        // interruption.
        let special = match OutputFile::open(name, PREFIX) {
            Ok(OutputFile::Special(file)) => Some(file),
            Ok(OutputFile::File(_)) => None,
            Err(error) => return Err(unwritable(option, name, &error)),
        };
        Ok(Some(Self {
            option,
            name: name.to_owned(),
            special,
        }))
    }

    fn write(
        self,
        make: impl FnOnce() -> Result<Vec<u8>, report::ReportError>,
    ) -> Result<(), ExitError> {
        let (option, name) = (self.option, self.name);
        let bytes = make()
            .map_err(|error| ExitError::failed(format!("{option} {}: {error}", name.display())))?;
        let to = match self.special {
            Some(file) => Ok(OutputFile::Special(file)),
            None => OutputFile::open(&name, PREFIX),
        };
        let written = to.and_then(|to| match to {
            OutputFile::Special(mut file) => file.write_all(&bytes),
            OutputFile::File(new) => whole(new, &bytes),
        });
        written.map_err(|error| unwritable(option, &name, &error))
    }
}

fn whole(new: NewFile, bytes: &[u8]) -> io::Result<()> {
    let mut file: &File = new.file();
    file.write_all(bytes)?;
    new.complete()
}

fn unwritable(option: &str, name: &Path, error: &io::Error) -> ExitError {
    ExitError::failed(format!(
        "{option} {}: cannot be written: {error}",
        name.display()
    ))
}
