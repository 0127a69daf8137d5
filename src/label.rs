//! Label expressions such as `phone & !old`, which choose devices.

use serde::Serialize;

/// A parsed label expression; displayed and serialised as typed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "String")]
pub struct LabelExpression {
    text: String,
}

impl From<LabelExpression> for String {
    fn from(expression: LabelExpression) -> Self {
        expression.text
    }
}
