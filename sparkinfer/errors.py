"""One tree of exceptions, one code each.

    SparkInferError
    ├── ConfigError            wrong use, found on the driver before anything runs
    │   ├── InvalidConfig  InvalidTemplate  MissingColumn  WrongColumnType  ReservedColumn
    │   └── NullKey  DuplicateKey  SourceNotFound  JavaNotFound  MissingDependency
    ├── ModelError             the model cannot be had or cannot run here
    │   ├── InvalidModelUri  ModelNotFound  ModelIncomplete  DownloadFailed
    │   └── UnsupportedModel  TrustRequired  InsufficientMemory  DeviceNotFound  SelfCheckFailed
    ├── RowError               one row; becomes data in the row, never ends the others
    │   ├── PromptTooLong  EmptyPrompt  UnknownToken  InvalidMessages  InvalidParams
    │   ├── Truncated  SchemaMismatch
    │   └── PoisonRow  OutOfMemory  RowTimeout  InferenceFailed
    ├── HostError              the engine process and the way to it
    │   └── EngineStartFailed  EngineDied  EngineTimeout  ProtocolError  SocketPathTooLong
    └── JobError               tables and commits
        ├── TableSchemaMismatch  PermissionDenied  DiskFull  CommitConflict  CommitFailed
        └── RowCountMismatch  FailedRows  StagingLost  DeadlineReached

A failed *row* is data (its ``code`` and message stand in the result struct); a failed *job* is an exception. Every class
pickles: its one argument is the whole message. ``transient`` says whether trying again can help.
"""

from __future__ import annotations

from typing import ClassVar


class SparkInferError(Exception):
    """Root of everything sparkinfer raises on purpose.

    Args:
        message: one sentence with what went wrong, where, and how to mend it.
    """

    code: ClassVar[str] = "SPARKINFER_ERROR"
    transient: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The sentence without the code."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"[{self.code}] {self.args[0]}"


class ConfigError(SparkInferError):
    """Wrong use: found on the driver, before inference starts."""

    code = "INVALID_CONFIG"


class InvalidConfig(ConfigError):
    """An unknown setting, a wrong type, or a value out of its range."""

    code = "INVALID_CONFIG"


class InvalidTemplate(ConfigError):
    """A prompt template that cannot be parsed."""

    code = "INVALID_TEMPLATE"


class MissingColumn(ConfigError):
    """A template argument, key or kept column that the source does not have."""

    code = "MISSING_COLUMN"


class WrongColumnType(ConfigError):
    """A column of a type that has no canonical text; cast it to string."""

    code = "WRONG_COLUMN_TYPE"


class ReservedColumn(ConfigError):
    """A kept column with a name that the result table uses itself."""

    code = "RESERVED_COLUMN"


class NullKey(ConfigError):
    """A key column holds nulls; refused before inference."""

    code = "NULL_KEY"


class DuplicateKey(ConfigError):
    """Two source rows have the same key; refused before inference."""

    code = "DUPLICATE_KEY"


class SourceNotFound(ConfigError):
    """The source table, path or file does not exist or cannot be read."""

    code = "SOURCE_NOT_FOUND"


class JavaNotFound(ConfigError):
    """No Java, or one too old for this Spark."""

    code = "JAVA_NOT_FOUND"


class MissingDependency(ConfigError):
    """An optional package is needed; the message names the extra."""

    code = "MISSING_DEPENDENCY"


class ModelError(SparkInferError):
    """The model cannot be found, loaded or run here."""

    code = "MODEL_ERROR"


class InvalidModelUri(ModelError):
    """The model argument has no form that sparkinfer knows."""

    code = "INVALID_MODEL_URI"


class ModelNotFound(ModelError):
    """No model at that place, or no such revision, version or alias."""

    code = "MODEL_NOT_FOUND"


class ModelIncomplete(ModelError):
    """A model folder misses files (half downloaded, or not a model)."""

    code = "MODEL_INCOMPLETE"


class DownloadFailed(ModelError):
    """The hub or registry did not deliver; trying again may help."""

    code = "MODEL_DOWNLOAD_FAILED"
    transient = True


class UnsupportedModel(ModelError):
    """An architecture that neither the packed nor the always-right path can run."""

    code = "UNSUPPORTED_MODEL"


class SelfCheckFailed(ModelError):
    """Packed prompts did not give the logits that each gives alone."""

    code = "SELF_CHECK_FAILED"


class TrustRequired(ModelError):
    """The model ships Python code; it runs only with trust_remote_code=True."""

    code = "TRUST_REMOTE_CODE_REQUIRED"


class InsufficientMemory(ModelError):
    """Weights and the smallest KV pool do not fit beside what is already there."""

    code = "INSUFFICIENT_MEMORY"


class DeviceNotFound(ModelError):
    """A device was asked for that this executor does not have."""

    code = "DEVICE_NOT_FOUND"


class RowError(SparkInferError):
    """One row's failure: stored in the row, the others go on."""

    code = "ROW_ERROR"


class PromptTooLong(RowError):
    """The prompt and max_tokens do not fit the model's context."""

    code = "PROMPT_TOO_LONG"


class EmptyPrompt(RowError):
    """A prompt of no token: an empty text, and a model without a chat template."""

    code = "EMPTY_PROMPT"


class UnknownToken(RowError):
    """A token that the tokenizer has and the model does not."""

    code = "UNKNOWN_TOKEN"


class InvalidMessages(RowError):
    """A messages value that no chat template can take."""

    code = "INVALID_MESSAGES"


class InvalidParams(RowError):
    """Per-row params that are unknown, of the wrong type or out of range."""

    code = "INVALID_PARAMS"


class Truncated(RowError):
    """A typed answer was cut at max_tokens; raw_text holds what came."""

    code = "TRUNCATED"


class SchemaMismatch(RowError):
    """A typed answer does not parse into its type; raw_text holds it."""

    code = "SCHEMA_MISMATCH"


class PoisonRow(RowError):
    """This row killed the engine when it ran alone; quarantined."""

    code = "POISON_ROW"


class OutOfMemory(RowError):
    """The row did not fit the device's memory even alone."""

    code = "OUT_OF_MEMORY"
    transient = True


class RowTimeout(RowError):
    """The row's deadline passed before it was done."""

    code = "ROW_TIMEOUT"
    transient = True


class InferenceFailed(RowError):
    """The engine raised while it worked on this row."""

    code = "INFERENCE_FAILED"
    transient = True


class HostError(SparkInferError):
    """The executor's engine process or the socket to it."""

    code = "HOST_ERROR"


class EngineStartFailed(HostError):
    """The engine process ended before it was ready; the message holds its own error."""

    code = "ENGINE_START_FAILED"


class EngineDied(HostError):
    """The engine process died and was not (or no longer) restarted."""

    code = "ENGINE_DIED"
    transient = True


class EngineTimeout(HostError):
    """The engine gave no sign of life in the allowed time."""

    code = "ENGINE_TIMEOUT"
    transient = True


class ProtocolError(HostError):
    """A frame on the socket that this version cannot read."""

    code = "PROTOCOL_ERROR"


class SocketPathTooLong(HostError):
    """The executor's local folder gives a socket path beyond the system's limit."""

    code = "SOCKET_PATH_TOO_LONG"


class JobError(SparkInferError):
    """A job that cannot go on; what was committed stays."""

    code = "JOB_FAILED"


class TableSchemaMismatch(JobError):
    """The result table exists with other columns or types."""

    code = "TABLE_SCHEMA_MISMATCH"


class PermissionDenied(JobError):
    """No right to read the source or to write the table or its staging folder."""

    code = "PERMISSION_DENIED"


class DiskFull(JobError):
    """No space left where staging, memo, cache or table is written."""

    code = "DISK_FULL"
    transient = True


class CommitConflict(JobError):
    """Another writer committed first; committed again from staging."""

    code = "COMMIT_CONFLICT"
    transient = True


class CommitFailed(JobError):
    """A commit failed for good; the staged answers are kept and named."""

    code = "COMMIT_FAILED"


class RowCountMismatch(JobError):
    """Rows out differ from rows in. This is a bug of sparkinfer; nothing was committed."""

    code = "ROW_COUNT_MISMATCH"


class FailedRows(JobError):
    """``fail_on_error=True`` and rows failed; the good rows are committed."""

    code = "FAILED_ROWS"


class StagingLost(JobError):
    """Staged files vanished under a running job."""

    code = "STAGING_LOST"


class DeadlineReached(JobError):
    """The job's time was over; what was finished is committed or kept, and the same job goes on."""

    code = "DEADLINE_REACHED"
    transient = True


def all_errors() -> list[type[SparkInferError]]:
    """Every class of the tree, root first, in definition order."""
    found: list[type[SparkInferError]] = [SparkInferError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return found


def by_code(code: str) -> type[SparkInferError]:
    """The most specific class with this code; the root where the code is unknown."""
    matches = [cls for cls in all_errors() if cls.code == code]
    return matches[-1] if matches else SparkInferError
