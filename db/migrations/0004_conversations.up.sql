-- Conversations, turns, permission requests, transcripts, tool calls.

create table conversations (
    tenant_id               uuid not null references tenants on delete cascade,
    id                      uuid not null,
    agent_id                uuid not null,
    agent_version           int not null,
    workspace_id            uuid not null,
    title                   text not null default '' check (length(title) <= 120),
    title_source            text not null default '' check (title_source in ('', 'person', 'agent')),
    status                  text not null default 'pending' check (status in ('pending', 'running', 'idle', 'failed', 'terminated')),
    runtime                 text not null,
    model                   text not null default '',
    cwd                     text not null,
    permission_policy       jsonb not null default '{}',
    labels                  jsonb not null default '{}',
    sandbox_api_access      text not null default 'owner' check (sandbox_api_access in ('owner', 'none')),
    source                  text not null default 'api' check (source in ('ui', 'api', 'agent')),
    parent_id               uuid,
    inference_credential_id uuid,         -- what it is bound to; null for runtimes that need none
    credential_revision     int not null default 0,
    runtime_session_id      text not null default '',
    home_machine_id         uuid,         -- the machine on which its config home was made
    adapter                 jsonb,        -- the process, its token, and the last fully flushed offsets: package conversation's adapter
    turn_count              int not null default 0,
    error                   jsonb,
    last_active_at          timestamptz not null default now(),
    last_read_at            timestamptz,
    hidden_at               timestamptz,  -- deleted by a person; the transcript waits for retention
    ended_at                timestamptz,
    created_by              text not null default '',
    created_at              timestamptz not null default now(),
    updated_at              timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, agent_id, agent_version) references agent_versions,
    foreign key (tenant_id, workspace_id) references workspaces
);
create index conversations_workspace on conversations (tenant_id, workspace_id);
create index conversations_agent on conversations (tenant_id, agent_id);
create index conversations_recent on conversations (tenant_id, last_active_at desc, id);
call protect('conversations');
call definer_reads('conversations');

create table turns (
    tenant_id         uuid not null references tenants on delete cascade,
    id                uuid not null,
    conversation_id   uuid not null,
    turn_number       int not null check (turn_number >= 1),
    prompt            text not null,
    asked_by          text not null,               -- who sent the prompt, as tenant.Actor.By names them
    images            jsonb not null default '[]',
    status            text not null default 'pending' check (status in ('pending', 'running', 'completed', 'failed', 'interrupted')),
    stop_reason       text not null default '',
    reason            text not null default '',    -- why it was interrupted
    waiting           boolean not null default false,
    waiting_for       text not null default '',    -- queue, setup, machine, adapter, session, model, permission; '' when nothing
    waiting_since     timestamptz,
    error             jsonb,                       -- {code, message, …}
    exit_code         int,
    client_request_id text not null default '',
    origin            text not null default 'user' check (origin in ('user', 'autonomous')),
    attempts          int not null default 0,
    model             text not null default '',
    source            text not null default '',    -- own, pool
    credential_id     uuid,
    usage             jsonb not null default '{}',
    tool_call_count   int not null default 0,
    interrupt_asked   timestamptz,
    prompt_sent_at    timestamptz,                 -- set before the prompt is written to the adapter: it is never sent twice
    first_token_at    timestamptz,
    started_at        timestamptz,
    ended_at          timestamptz,
    inserted_at       timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, conversation_id, turn_number),
    foreign key (tenant_id, conversation_id) references conversations on delete cascade
);
create unique index turns_one_running on turns (tenant_id, conversation_id) where status = 'running';
create index turns_open on turns (tenant_id, conversation_id) where status in ('pending', 'running');
call protect('turns');
call definer_reads('turns');

-- The counter of a conversation's rows. Its lock makes sequence order commit order.
create table conversation_heads (
    tenant_id       uuid not null references tenants on delete cascade,
    conversation_id uuid not null,
    seq             bigint not null default 0,
    primary key (tenant_id, conversation_id),
    foreign key (tenant_id, conversation_id) references conversations on delete cascade
);
call protect('conversation_heads');

create table events (
    tenant_id       uuid not null references tenants on delete cascade,
    conversation_id uuid not null,
    seq             bigint not null,
    turn_id         uuid,
    type            text not null check (type in ('prompt', 'message', 'thought', 'plan', 'tool_call', 'tool_output', 'tool_result',
                        'permission_request', 'permission_resolved', 'stage', 'usage', 'notice', 'error')),
    body            jsonb not null,
    raw             text not null default '',      -- the protocol line as it came, redacted
    created_at      timestamptz not null default now(),
    primary key (tenant_id, conversation_id, seq),
    foreign key (tenant_id, conversation_id) references conversations on delete cascade
);
call protect('events', 'select, insert');

-- One row a tool call, kept in the transaction of its events, so that lists never parse transcripts.
create table tool_calls (
    tenant_id       uuid not null references tenants on delete cascade,
    conversation_id uuid not null,
    turn_id         uuid not null,
    id              text not null,                 -- the adapter's tool call id
    title           text not null default '',
    kind            text not null default '',
    status          text not null default 'pending' check (status in ('pending', 'running', 'completed', 'failed', 'interrupted')),
    input           jsonb,
    exit_code       int,
    signal          text not null default '',
    duration_ms     bigint,
    output_bytes    bigint not null default 0,
    truncated       boolean not null default false,
    full_log_path   text not null default '',
    source          jsonb not null default '{}',   -- {output, exit_code, duration}: protocol or machine
    first_seq       bigint not null,
    last_seq        bigint not null,
    started_at      timestamptz not null default now(),
    ended_at        timestamptz,
    primary key (tenant_id, conversation_id, turn_id, id),
    foreign key (tenant_id, conversation_id) references conversations on delete cascade
);
call protect('tool_calls');

create table permission_requests (
    tenant_id       uuid not null references tenants on delete cascade,
    id              uuid not null,
    conversation_id uuid not null,
    turn_id         uuid not null,
    tool_call_id    text not null default '',
    tool            jsonb not null,
    options         jsonb not null,
    status          text not null default 'open' check (status in ('open', 'resolved')),
    outcome         text not null default '',      -- auto_allow, person, timeout, cancelled …
    option_id       text not null default '',
    answered_by     text not null default '',
    deadline        timestamptz,
    created_at      timestamptz not null default now(),
    resolved_at     timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, conversation_id) references conversations on delete cascade
);
create index permission_requests_open on permission_requests (tenant_id, conversation_id) where status = 'open';
call protect('permission_requests');

-- The account's own stream: workspace.status, workspace.setup, conversation.*. Transcripts stay out of it.
create table tenant_events (
    tenant_id    uuid not null references tenants on delete cascade,
    seq          bigint not null,
    name         text not null,
    workspace_id uuid,
    setup_id     uuid,                    -- rows of the previous setup go with the next
    body         jsonb not null,
    created_at   timestamptz not null default now(),
    primary key (tenant_id, seq)
);
create index tenant_events_setup on tenant_events (tenant_id, workspace_id, setup_id) where setup_id is not null;
call protect('tenant_events', 'select, insert, delete');
