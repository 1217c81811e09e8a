"""What ``sparkinfer doctor`` looks at, one module a subject. No check starts an engine or a JVM session."""
