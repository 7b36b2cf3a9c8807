//! vhost-user sessions: messages, memory tables, descriptors
