-- What a rebuild would take with it, and how often a conversation has a lost machine built again.

alter table machines
    add column work    jsonb,       -- of a parked machine: the work on its disk that is nowhere else, as it was seen before it stopped
    add column work_at timestamptz; -- when; null: nothing is known

alter table conversations add column rebuilt_at timestamptz; -- when it last had a machine built again that was lost
