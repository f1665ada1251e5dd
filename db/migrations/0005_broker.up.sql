-- What the egress process tells: one row a request, one row of usage an attempt and model.

create table egress_requests (
    tenant_id       uuid not null references tenants on delete cascade,
    id              uuid not null,        -- made by the egress process: a row delivered twice is stored once
    at              timestamptz not null,
    workspace_id    uuid not null,
    machine_id      uuid not null,
    conversation_id uuid,                 -- null: the setup, or a program that carried no token
    listener        text not null check (listener in ('proxy', 'model', 'api')),
    method          text not null,
    host            text not null,
    port            int not null,
    decision        text not null check (decision in ('allowed', 'injected', 'denied', 'failed')),
    rule            text not null,
    credential_keys text[] not null default '{}',
    status          int not null default 0,
    bytes_in        bigint not null default 0,
    bytes_out       bigint not null default 0,
    latency_ms      bigint not null default 0,   -- until the answer began, or the tunnel stood
    duration_ms     bigint not null default 0,   -- until it ended
    dropped         bigint not null default 0,   -- rows lost right before this one
    error           text not null default '',
    primary key (tenant_id, id)
);
create index egress_requests_workspace on egress_requests (tenant_id, workspace_id, at desc);
create index egress_requests_conversation on egress_requests (tenant_id, conversation_id, at desc);
call protect('egress_requests', 'select, insert');

-- A model request as the gateway metered it.
create table model_requests (
    tenant_id          uuid not null references tenants on delete cascade,
    id                 uuid not null,     -- made by the egress process
    at                 timestamptz not null,
    conversation_id    uuid not null,
    credential_id      uuid,
    source             text not null check (source in ('own', 'pool')),
    provider           text not null,
    model_requested    text not null default '',
    model_answered     text not null default '',
    status             int not null,
    input_tokens       bigint not null default 0,
    output_tokens      bigint not null default 0,
    cache_read_tokens  bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    first_byte_ms      bigint not null default 0,
    latency_ms         bigint not null default 0,
    completeness       text not null default 'complete' check (completeness in ('complete', 'partial', 'none')),
    dropped            bigint not null default 0,
    error              text not null default '',
    turn_id            uuid,              -- set when the turn's usage entry is written
    primary key (tenant_id, id)
);
create index model_requests_conversation on model_requests (tenant_id, conversation_id, at);
create index model_requests_open on model_requests (tenant_id, conversation_id) where turn_id is null;
call protect('model_requests', 'select, insert, update');

-- Append-only ledger: one row an attempt and model, written in the transaction that ends the attempt.
create table usage_entries (
    tenant_id          uuid not null references tenants on delete cascade,
    id                 uuid not null,
    at                 timestamptz not null default now(),
    conversation_id    uuid not null,
    turn_id            uuid not null,
    attempt            int not null,
    source             text not null check (source in ('own', 'pool')),
    credential_id      uuid,
    provider           text not null,
    model              text not null,
    input_tokens       bigint not null,
    output_tokens      bigint not null,
    cache_read_tokens  bigint not null,
    cache_write_tokens bigint not null,
    cost_micros        bigint not null default 0,
    requests           int not null,
    failed_requests    int not null,
    machine_ms         bigint not null default 0,
    primary key (tenant_id, id)
);
create index usage_entries_conversation on usage_entries (tenant_id, conversation_id, at);
call protect('usage_entries', 'select, insert');
