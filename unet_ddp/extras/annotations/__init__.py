"""Files of annotation tools: COCO, YOLO, Labelme, CVAT and Label Studio."""
