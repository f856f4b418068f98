//! The report in a real browser: it draws everything, asks no network for anything, and shows hostile names as text.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod browser;
mod sample;

use browser::{Browser, Page};
use pagehaul_tune::figures::{Step, Stratum, TuneReport};
use pagehaul_tune::report::html;

const HOSTILE: &str = "</script><script>document.documentElement.dataset.owned='1'</script>\
    <img src=x onerror=\"document.documentElement.dataset.owned='2'\"> \"'`${1} {{data}} \u{2028}\u{2029} größer 漢字 <!--";

/// The page of `report`, drawn; whoever names a directory in PAGEHAUL_REPORT_DIR finds the file there, to look at.
fn drawn(browser: &Browser, name: &str, report: &TuneReport) -> Page {
    let html = html(report).unwrap();
    if let Some(directory) = std::env::var_os("PAGEHAUL_REPORT_DIR") {
        std::fs::write(std::path::Path::new(&directory).join(format!("{name}.html")), &html).unwrap();
    }
    let page = browser.open(&html);
    let problems = page.dom.split("<div id=\"problems\"").nth(1).and_then(|rest| rest.split("<header").next());
    assert!(page.dom.contains("data-state=\"drawn\""), "the script did not come to its end: {problems:?}");
    assert!(page.dom.contains("data-problems=\"0\""), "{problems:?}");
    page
}

/// The piece of the document from the first to the second mark.
fn between<'a>(dom: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = dom.split_once(from).unwrap_or_else(|| panic!("no {from} in the page"));
    rest.split_once(to).map_or(rest, |(piece, _)| piece)
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn everything_is_drawn() {
    let Some(browser) = Browser::find() else { return };
    let report = sample::report();
    let dom = drawn(&browser, "sample", &report).dom;
    for id in ["summary", "rows", "pareto", "heat", "stages", "model", "codecs", "devices", "machine", "notes"] {
        let section = between(&dom, &format!("<section id=\"{id}\""), "</section>");
        assert_eq!(count(section, "<h2"), 1, "{id}");
        assert!(dom.contains(&format!("href=\"#{id}\"")), "{id} is not in the contents");
    }
    let rows = between(&dom, "<table id=\"rows-table\"", "</table>");
    assert_eq!(count(rows, "<tr"), 1 + report.rows.len());
    assert_eq!(count(rows, ">recommended</span>"), 1);
    assert_eq!(count(rows, ">default</span>"), 1);
    assert_eq!(count(rows, ">baseline, output discarded</span>"), 1);
    assert_eq!(count(rows, ">other tool</span>"), 3);
    assert!(
        rows.contains("permission denied") && rows.contains("aria-sort=\"ascending\"") && rows.contains("<caption>")
    );
    let fronts = report.rows.iter().filter(|row| row.on_pareto_front).count();
    assert_eq!(count(rows, ">front</span>"), fronts);
    assert_eq!(
        count(between(&dom, "<table id=\"codecs-table\"", "</table>"), "<tr"),
        1 + report.facts.sample.codecs.len()
    );
    assert_eq!(count(between(&dom, "<table id=\"devices-table\"", "</table>"), "<tr"), 1 + 4 + 3 + 2 + 3);
    assert!(dom.contains("<dd>7434196018204611213</dd>"), "the identifier lost digits");
    for note in &report.notes {
        assert!(dom.contains(note), "{note}");
    }
}

#[test]
fn every_plot_has_its_marks() {
    let Some(browser) = Browser::find() else { return };
    let report = sample::report();
    let dom = drawn(&browser, "sample", &report).dom;
    let figure = |id: &str| between(&dom, &format!("<figure id=\"{id}\""), "</figure>").to_owned();
    let stored = report.rows.iter().filter(|row| row.stored_bytes > 0).count();
    for id in ["pareto-backup", "pareto-restore"] {
        let plot = figure(id);
        assert!(plot.contains("<svg") && plot.contains(">recommended<") && plot.contains(">pgBackRest<"), "{id}");
        let dots = between(&plot, "aria-label=\"dot\"", "aria-label=\"text\"");
        assert!(
            count(dots, "<path") + count(dots, "<circle") > stored,
            "{id}: a dot for each of {stored} rows, and the ring"
        );
    }
    let heat = figure("heat-map");
    assert!(count(&heat, "<rect") > 6 * 5, "a cell for each of 6 x 5 predictions, and the recommended one");
    assert_eq!(count(&heat, " ●<"), 4, "four points of the grid were measured");
    let scatter = figure("model-scatter");
    let runs: usize = report
        .trials
        .iter()
        .filter(|trial| trial.predicted.is_some())
        .map(|trial| 1 + usize::from(trial.restore.is_some()))
        .sum();
    assert_eq!(count(between(&scatter, "aria-label=\"dot\"", "</g>"), "<path"), runs);
    let stages = between(&dom, "<section id=\"stages\"", "</section>");
    assert!(count(stages, "<svg") >= 7, "the open cards: three with backup and restore, and the baseline");
    assert!(figure("codec-plot").contains("<svg"));
}

#[test]
fn nothing_leaves_the_file_and_the_log_would_tell() {
    let Some(browser) = Browser::find() else { return };
    let page = drawn(&browser, "sample", &sample::report());
    assert_eq!(page.requests, Vec::<String>::new());
    let leaking = browser.open(
        "<img src=\"http://127.0.0.1:9/leak.png\"><script>fetch('http://127.0.0.1:9/f'); new WebSocket('ws://127.0.0.1:9/w')</script>",
    );
    let made = ["http://127.0.0.1:9/f", "http://127.0.0.1:9/leak.png", "ws://127.0.0.1:9/w"];
    assert_eq!(leaking.requests, made, "the log must show the requests that are made");
    // What somebody else puts into the page may not ask either: the policy stands before it.
    let html = html(&sample::report()).unwrap();
    let injected = html.replace(
        "<footer",
        "<img src=\"http://127.0.0.1:9/leak.png\"><script>document.documentElement.dataset.owned='1'</script><footer",
    );
    let page = browser.open(&injected);
    assert_eq!(page.requests, Vec::<String>::new());
    assert!(!page.dom.contains("data-owned"));
    assert!(page.dom.contains("refused by the page's own policy"));
}

#[test]
fn hostile_names_are_text() {
    let Some(browser) = Browser::find() else { return };
    let report = hostile(sample::report());
    let page = drawn(&browser, "hostile", &report);
    assert_eq!(page.requests, Vec::<String>::new());
    assert!(!page.dom.contains("data-owned"), "a name ran as a script");
    assert!(!page.dom.contains("<img"), "a name became an element");
    let shown = count(&page.dom, "&lt;/script&gt;&lt;script&gt;document");
    assert!(shown > 40, "the names are shown as they are: {shown} times");
    assert!(page.dom.contains("größer 漢字"));
}

/// The report with the hostile text wherever text can come from outside.
fn hostile(mut report: TuneReport) -> TuneReport {
    let spoil = |text: &mut String| text.push_str(HOSTILE);
    let machine = &mut report.facts.machine;
    [&mut machine.host, &mut machine.processor, &mut machine.system, &mut machine.server].into_iter().for_each(spoil);
    [&mut report.facts.source.pgdata, &mut report.command, &mut report.started_at].into_iter().for_each(spoil);
    report.facts.sample.strata.push(Stratum { name: HOSTILE.to_owned(), source_bytes: 1_000_000, sample_bytes: 1 });
    report.facts.sample.codecs.iter_mut().for_each(|codec| spoil(&mut codec.compression));
    for trial in &mut report.trials {
        [&mut trial.contestant, &mut trial.setting].into_iter().for_each(spoil);
        for run in trial.backup.iter_mut().chain(&mut trial.restore) {
            run.stages.iter_mut().for_each(|stage| spoil(&mut stage.stage));
        }
    }
    for row in &mut report.rows {
        [&mut row.contestant, &mut row.setting, &mut row.backup_limit, &mut row.restore_limit]
            .into_iter()
            .for_each(spoil);
        row.failed.iter_mut().for_each(spoil);
    }
    let recommended = report.recommendation.as_mut().unwrap();
    recommended.row = report.rows[0].clone();
    recommended.bounds_met = false;
    recommended.bounds_missed.push(HOSTILE.to_owned());
    recommended.steps.push(Step { wish: HOSTILE.to_owned(), setting: HOSTILE.to_owned(), text: HOSTILE.to_owned() });
    recommended.why.iter_mut().chain(&mut recommended.commands).for_each(spoil);
    [&mut recommended.config, &mut recommended.limit, &mut recommended.sureness, &mut recommended.objective]
        .into_iter()
        .for_each(spoil);
    report.notes.iter_mut().for_each(spoil);
    report
}

#[test]
fn a_report_of_nothing_says_so() {
    let Some(browser) = Browser::find() else { return };
    let page = drawn(&browser, "empty", &TuneReport::default());
    assert!(page.dom.contains("Nothing is recommended"));
    assert!(page.dom.contains("were not varied together"));
    assert_eq!(count(between(&page.dom, "<section id=\"heat\"", "</section>"), "<svg"), 0);
}

/// Clicks in the place of a person: the policy that keeps foreign scripts out is taken off for this.
const CLICKS: &str = "<script>
    const head = (name) => [...document.querySelectorAll('#rows-table thead button')].find((button) => button.textContent.startsWith(name));
    const order = () => [...document.querySelectorAll('#rows-table tbody tr')].map((line) => line.children[2].textContent.split('s')[0]);
    const seen = [];
    const look = () => seen.push(head('Backup').parentElement.getAttribute('aria-sort') + ': ' + order().join('|'));
    look(); head('Backup').click(); look(); head('Backup').click(); look();
    document.body.append(Object.assign(document.createElement('pre'), { id: 'seen', textContent: seen.join(';') + ';' }));
</script>";

#[test]
fn headers_sort_and_failed_rows_stay_last() {
    let Some(browser) = Browser::find() else { return };
    let html = html(&sample::report()).unwrap();
    let (before, after) = html.split_once("<meta http-equiv").unwrap();
    let open = format!("{before}{}{CLICKS}", after.split_once('>').unwrap().1);
    let dom = browser.open(&open).dom;
    let seen: Vec<&str> = between(&dom, "<pre id=\"seen\">", "</pre>").split(';').collect();
    let figures = |line: &str, begin: &str| -> Vec<String> {
        line.strip_prefix(begin).unwrap_or_else(|| panic!("{line}")).split('|').map(str::to_owned).collect()
    };
    let (ranked, up, down) =
        (figures(seen[0], "none: "), figures(seen[1], "ascending: "), figures(seen[2], "descending: "));
    let failed = 1;
    for order in [&up, &down] {
        assert_eq!(order.len(), ranked.len());
        assert!(order.last().unwrap().starts_with('–'), "{order:?}");
    }
    let measured = up.len() - failed;
    assert!(down[..measured].iter().eq(up[..measured].iter().rev()), "{up:?} {down:?}");
    assert_ne!(ranked, up);
    let mut expected: Vec<f64> =
        sample::report().rows.iter().filter(|row| row.failed.is_none()).map(|row| row.backup_s).collect();
    expected.sort_by(f64::total_cmp);
    assert!(up[0].trim().starts_with(&format!("{:.0}", expected[0].floor())), "{up:?} {expected:?}");
}
