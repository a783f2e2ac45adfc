"""Objects in storage by their addresses: s3://, gs://, az://, http:// to read."""

from unet_ddp.storage.address import Url, as_path, is_address, is_remote, local_path, refuse_web
from unet_ddp.storage.clients import NotFoundError, StorageError
from unet_ddp.storage.objects import (
    Version,
    check_answers,
    copy,
    delete,
    exists,
    find_stamp,
    hold,
    list_objects,
    local_file,
    put,
    read,
    read_chunks,
    read_version,
    start_reader,
)
