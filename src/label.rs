//! Label expressions such as `phone & !old`, which choose devices.
//!
//! `or = and {"|" and}`, `and = not {"&" not}`, `not = "!" not | "(" or ")" | word`, words of `[a-z0-9._-]`.

use serde::Serialize;

/// Longest expression, bytes.
const LENGTH_MAX: usize = 500;
/// Deepest nesting of `!` and `(`.
const DEPTH_MAX: usize = 32;

/// A parsed label expression; displayed and serialised as typed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "String")]
pub struct LabelExpression {
    text: String,
    node: Node,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Label(String),
    Not(Box<Node>),
    All(Vec<Node>),
    Any(Vec<Node>),
}

impl From<LabelExpression> for String {
    fn from(expression: LabelExpression) -> Self {
        expression.text
    }
}

impl LabelExpression {
    /// Parses an expression.
    ///
    /// # Errors
    /// One line that says what is wrong and at which column, without a place: the caller knows the file.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LENGTH_MAX {
            return Err(format!("a label expression of {} bytes is longer than {LENGTH_MAX}", text.len()));
        }
        let mut parser = Parser { text, at: 0, depth: 0 };
        let node = parser.any()?;
        match parser.peek() {
            None => Ok(Self { text: text.to_owned(), node }),
            Some(c) => Err(parser.fault(&format!("`{}` where `&`, `|` or the end was due", c.escape_debug()))),
        }
    }

    /// Whether a device with these labels is chosen.
    pub fn matches(&self, labels: &[String]) -> bool {
        self.node.matches(labels)
    }

    /// As typed.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Node {
    fn matches(&self, labels: &[String]) -> bool {
        match self {
            Self::Label(label) => labels.contains(label),
            Self::Not(inner) => !inner.matches(labels),
            Self::All(parts) => parts.iter().all(|p| p.matches(labels)),
            Self::Any(parts) => parts.iter().any(|p| p.matches(labels)),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn fault(&self, what: &str) -> String {
        format!("{what} at column {} of the label expression", self.text[..self.at].chars().count() + 1)
    }

    fn any(&mut self) -> Result<Node, String> {
        let mut parts = vec![self.all()?];
        while self.take('|') {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Any(parts) })
    }

    fn all(&mut self) -> Result<Node, String> {
        let mut parts = vec![self.not()?];
        while self.take('&') {
            parts.push(self.not()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::All(parts) })
    }

    fn not(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.fault(&format!("more than {DEPTH_MAX} levels of nesting")));
        }
        let node = if self.take('!') {
            Node::Not(Box::new(self.not()?))
        } else if self.take('(') {
            let inner = self.any()?;
            if !self.take(')') {
                return Err(self.fault("`)` is missing"));
            }
            inner
        } else {
            self.word()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn word(&mut self) -> Result<Node, String> {
        self.peek();
        let rest = &self.text[self.at..];
        let in_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let length = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(match rest.chars().next() {
                Some(c) => self.fault(&format!("`{}` where a label was due", c.escape_debug())),
                None => self.fault("a label is missing"),
            });
        }
        self.at += length;
        Ok(Node::Label(rest[..length].to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(text: &str, labels: &[&str]) -> bool {
        let labels: Vec<String> = labels.iter().map(|l| (*l).to_owned()).collect();
        LabelExpression::parse(text).unwrap().matches(&labels)
    }

    #[test]
    fn not_binds_before_and_before_or() {
        assert!(matches("phone & !old", &["phone"]));
        assert!(!matches("phone & !old", &["phone", "old"]));
        assert!(matches("phone & old | slow", &["slow"]));
        assert!(!matches("phone & (old | slow)", &["slow"]));
        assert!(matches("!!a", &["a"]));
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_column() {
        for (text, column) in [("", 1), ("a &", 4), ("a b", 3), ("(a", 3), ("a & Phone", 5), ("a)", 2)] {
            let error = LabelExpression::parse(text).unwrap_err();
            assert!(error.contains(&format!("column {column} ")), "{text:?}: {error}");
        }
        assert!(LabelExpression::parse(&"(".repeat(400)).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,60}") {
            if let Ok(expression) = LabelExpression::parse(&text) {
                expression.matches(&[]);
            }
        }
    }
}
