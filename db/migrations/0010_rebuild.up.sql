-- What a rebuild would take with it, and how often a conversation has a lost machine built again.

-- The work on a parked machine's disk that is nowhere else, as it was seen before it stopped. A table of its own: lists of
-- workspaces read machines, and not this.
create table machine_work (
    tenant_id  uuid not null references tenants on delete cascade,
    machine_id uuid not null,
    work       jsonb not null,
    seen_at    timestamptz not null default now(),
    primary key (tenant_id, machine_id),
    foreign key (tenant_id, machine_id) references machines on delete cascade
);
call protect('machine_work');

alter table conversations add column rebuilt_at timestamptz; -- when it last had a machine built again that was lost
