//! Templates: those that ship, and those of a project, which win by file name. Undefined names are errors, output is
//! escaped for its format without being asked, and neither time nor size is unbounded.

use super::markdown;
use crate::error::{Error, Place, Result};
use crate::report::text;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, escape_formatter};
use std::collections::BTreeMap;

/// Largest template of a project, bytes.
pub const TEMPLATE_BYTES_MAX: usize = 256 * 1024;
/// Most templates of a project.
pub const TEMPLATES_MAX: usize = 32;
/// Steps that rendering one file may take; a report of 1,000 devices needs a fifth.
const FUEL: u64 = 10_000_000;
/// Largest rendered file, bytes.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

const SHIPPED: &[(&str, &str)] = &[
    ("report.html.j2", include_str!("../../../reports/report.html.j2")),
    ("tested.html.j2", include_str!("../../../reports/tested.html.j2")),
    ("rules.html.j2", include_str!("../../../reports/rules.html.j2")),
    ("metrics.html.j2", include_str!("../../../reports/metrics.html.j2")),
    ("figure.html.j2", include_str!("../../../reports/figure.html.j2")),
    ("devices.html.j2", include_str!("../../../reports/devices.html.j2")),
    ("trouble.html.j2", include_str!("../../../reports/trouble.html.j2")),
    ("report.css", include_str!("../../../reports/report.css")),
    ("report.md.j2", include_str!("../../../reports/report.md.j2")),
    ("junit.xml.j2", include_str!("../../../reports/junit.xml.j2")),
];

/// The templates in force.
#[derive(Debug, Clone)]
pub struct Templates {
    environment: Environment<'static>,
    /// Where a project's templates came from, by file name.
    origins: BTreeMap<String, String>,
}

impl Templates {
    /// Those that ship.
    pub fn shipped() -> Result<Self> {
        Self::with(BTreeMap::new())
    }

    /// Those that ship, with a project's in their place: file name to path as the user knows it and text. A template
    /// that cannot be parsed, is too large or one too many is a usage error that names its line.
    pub fn with(own: BTreeMap<String, (String, String)>) -> Result<Self> {
        if own.len() > TEMPLATES_MAX {
            return Err(Error::usage(format!("{} report templates, at most {TEMPLATES_MAX} are allowed", own.len()))
                .hint("keep only the templates that differ from those that ship"));
        }
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_debug(true);
        environment.set_fuel(Some(FUEL));
        environment.set_syntax(syntax()?);
        environment.set_auto_escape_callback(|name| match name {
            _ if name.ends_with(".md.j2") => AutoEscape::Custom("markdown".into()),
            _ => minijinja::default_auto_escape_callback(name),
        });
        environment.set_formatter(|out, state, value| match state.auto_escape() {
            AutoEscape::Custom(_) if value.kind() == ValueKind::String && !value.is_safe() => {
                out.write_str(&markdown::escaped(&value.to_string())).map_err(minijinja::Error::from)
            }
            AutoEscape::Custom(_) => write!(out, "{value}").map_err(minijinja::Error::from),
            _ => escape_formatter(out, state, value),
        });
        environment.add_filter("code", |text: String| Value::from_safe_string(markdown::code(&text)));
        environment.add_filter("sentence", |said: String| text::as_sentence(&said));
        let mut templates = Self { environment, origins: BTreeMap::new() };
        for (name, text) in SHIPPED.iter().filter(|(name, _)| !own.contains_key(*name)) {
            templates.environment.add_template(name, text).map_err(|error| templates.error(name, &error))?;
        }
        for (name, (path, text)) in own {
            if text.len() > TEMPLATE_BYTES_MAX {
                return Err(Error::usage(format!("the template is larger than {TEMPLATE_BYTES_MAX} bytes"))
                    .at(Place::File { path, line: 0, column: 0 })
                    .hint("move large constant parts out of the template"));
            }
            templates.origins.insert(name.clone(), path);
            let added = templates.environment.add_template_owned(name.clone(), text);
            added.map_err(|error| templates.error(&name, &error))?;
        }
        Ok(templates)
    }

    /// Renders one template.
    pub(super) fn render(&self, name: &str, context: Value) -> Result<String> {
        let template = self.environment.get_template(name).map_err(|error| self.error(name, &error))?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(context, &mut out).map_err(|error| self.error(name, &error))?;
        String::from_utf8(out.0).map_err(|_| Error::bug(format!("{name} rendered to something that is not UTF-8")))
    }

    /// A template's error with file, line and column; a mistake in what ships is a bug.
    fn error(&self, name: &str, error: &minijinja::Error) -> Error {
        // errors inside an included template arrive wrapped; the innermost place is the one to look at
        let mut inner = error;
        while let Some(source) = std::error::Error::source(inner).and_then(|s| s.downcast_ref::<minijinja::Error>()) {
            inner = source;
        }
        let name = inner.name().unwrap_or(name);
        let detail = inner.detail().map(|d| format!(": {d}")).unwrap_or_default();
        let what = format!("the report template does not render: {}{detail}", inner.kind());
        let place =
            |path: &str| Place::File { path: path.to_owned(), line: inner.line().unwrap_or(0), column: column(inner) };
        match self.origins.get(name) {
            Some(path) => Error::usage(what)
                .at(place(path))
                .hint("compare with the template of the same name that ships; src/report/view.rs lists every field"),
            None if self.origins.is_empty() => Error::bug(what).at(place(&format!("reports/{name}"))),
            // a template that ships can only be broken by what it is given or by a project's template around it
            None => {
                Error::usage(what).at(place(name)).hint("a template of the project's reports folder includes this one")
            }
        }
    }
}

/// Block tags on lines of their own leave no empty lines.
fn syntax() -> Result<SyntaxConfig> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true)
        .build()
        .map_err(|error| Error::bug(format!("syntax of templates: {error}")))
}

fn column(error: &minijinja::Error) -> usize {
    let place = error.template_source().zip(error.range());
    let before = place.and_then(|(source, range)| source.get(..range.start));
    before.map_or(1, |text| text.rsplit('\n').next().unwrap_or("").chars().count() + 1)
}

/// A buffer that refuses to grow beyond its limit.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(std::io::Error::other(format!("more than {OUTPUT_BYTES_MAX} bytes of output")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn own(name: &str, text: &str) -> Result<Templates> {
        Templates::with(BTreeMap::from([(name.to_owned(), (format!("reports/{name}"), text.to_owned()))]))
    }

    #[test]
    fn a_name_that_does_not_exist_is_a_usage_error_with_line_and_column() {
        let templates = own("report.md.j2", "fine\n\n  {{ report.verdikt }}\n").unwrap();
        let error = templates.render("report.md.j2", context! { report => context! {} }).unwrap_err();
        assert_eq!(error.exit(), crate::error::ExitCode::Usage);
        assert_eq!(error.place().unwrap().to_string(), "reports/report.md.j2:3:6");
    }

    #[test]
    fn a_template_that_cannot_be_parsed_is_refused_at_once() {
        let error = own("report.md.j2", "{% if x %}\nno end").unwrap_err();
        assert_eq!(error.exit(), crate::error::ExitCode::Usage);
        assert!(error.to_string().contains("reports/report.md.j2:2"), "{error}");
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let nested = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}\
                      {% endfor %}{% endfor %}";
        let error = own("junit.xml.j2", nested).unwrap().render("junit.xml.j2", context! {}).unwrap_err();
        assert_eq!(error.exit(), crate::error::ExitCode::Usage);
    }

    #[test]
    fn a_template_of_a_megabyte_is_refused() {
        assert!(own("report.md.j2", &"x".repeat(TEMPLATE_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_project_s_template_wins_and_is_escaped_for_its_format() {
        let templates = own("junit.xml.j2", "{{ name }}").unwrap();
        let shown = templates.render("junit.xml.j2", context! { name => "<a & \"b\">" }).unwrap();
        assert_eq!(shown, "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
