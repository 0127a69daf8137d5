//! Collects what is wrong with the values of one document, so that everything is said in one go.

use super::{Document, NAME_CHARS_MAX, is_name, printable};
use crate::error::Error;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;

/// Longest one-line text, in characters.
const LINE_CHARS_MAX: usize = 400;

/// The faults found in one document so far.
pub struct Checker<'a> {
    document: &'a Document,
    faults: Vec<Error>,
}

impl<'a> Checker<'a> {
    /// Nothing found yet.
    pub fn new(document: &'a Document) -> Self {
        Self { document, faults: Vec::new() }
    }

    /// The document.
    pub fn document(&self) -> &'a Document {
        self.document
    }

    /// Notes a fault at a span.
    pub fn fault(&mut self, span: Range<usize>, what: impl Into<String>, hint: impl Into<String>) {
        self.faults.push(self.document.fault(span, what).hint(hint));
    }

    /// The name that the document gives itself with the key `name`, else its file's name.
    pub fn name(&mut self, key: Option<&Spanned<String>>, noun: &str) -> (String, Range<usize>) {
        let (name, span) = match key {
            Some(name) => (name.get_ref().clone(), name.span()),
            None => (self.document.stem().to_owned(), 0..0),
        };
        self.name_fits(&name, span.clone(), noun);
        (name, span)
    }

    /// A name must be of `[a-z0-9-]`.
    pub fn name_fits(&mut self, name: &str, span: Range<usize>, noun: &str) {
        if !is_name(name) {
            let shown: String = printable(name).chars().take(NAME_CHARS_MAX).collect();
            self.fault(
                span,
                format!("`{shown}` is not a name for a {noun}"),
                format!("names are 1 to {NAME_CHARS_MAX} characters of a-z, 0-9 and -, with - only inside"),
            );
        }
    }

    /// A number must lie within `range`.
    pub fn within<N: PartialOrd + Display>(
        &mut self,
        span: Range<usize>,
        key: &str,
        value: &N,
        range: RangeInclusive<N>,
    ) {
        // NaN is in no range
        if !range.contains(value) {
            self.fault(
                span,
                format!("`{key}` is {value}, outside {} to {}", range.start(), range.end()),
                format!("give `{key}` a number from {} to {}", range.start(), range.end()),
            );
        }
    }

    /// As [`Checker::within`], for a key that may be absent.
    pub fn within_if_there<N: PartialOrd + Display>(
        &mut self,
        key: &str,
        value: Option<&Spanned<N>>,
        range: RangeInclusive<N>,
    ) {
        if let Some(value) = value {
            self.within(value.span(), key, value.get_ref(), range);
        }
    }

    /// A text must be one line of 1 to 400 printable characters.
    pub fn line(&mut self, key: &str, value: &Spanned<String>) {
        let text = value.get_ref();
        let chars = text.chars().count();
        if text.trim().is_empty() || chars > LINE_CHARS_MAX || printable(text) != *text {
            self.fault(
                value.span(),
                format!("`{key}` is not one line of text"),
                format!("give `{key}` 1 to {LINE_CHARS_MAX} printable characters"),
            );
        }
    }

    /// What was found.
    pub fn into_faults(self) -> Vec<Error> {
        self.faults
    }
}
